"""Warn of a GPU driver that pages.

On Windows and WSL 2, the driver may place allocations in system memory when the card is full. Allocations
then succeed but become slow, and a later out-of-memory error reports more memory than the card has.
"""

import platform

import torch

_BYTES_PER_GB = 1e9
_REMEDY = (
    'Set "CUDA - Sysmem Fallback Policy" to "Prefer No Sysmem Fallback" in the NVIDIA control panel, or call '
    "torch.cuda.set_per_process_memory_fraction(1.0), so that a full GPU raises an error"
)


def is_windows_driver(system: str, release: str) -> bool:
    """Return whether a Windows driver manages the GPU: on Windows, or under WSL with a Microsoft kernel.

    >>> is_windows_driver("Linux", "5.15.167.4-microsoft-standard-WSL2"), is_windows_driver("Linux", "6.8.0")
    (True, False)
    """
    return system == "Windows" or "microsoft" in release.lower()


def paging_warning(allocated_bytes: int, capacity_bytes: int, windows_driver: bool) -> str | None:
    """Return a warning about paging by the driver, or `None` if paging cannot occur."""
    capacity = f"{capacity_bytes / _BYTES_PER_GB:.2f} GB"
    if allocated_bytes > capacity_bytes:
        allocated = f"{allocated_bytes / _BYTES_PER_GB:.2f} GB"
        return (
            f"{allocated} are allocated on a GPU with {capacity}: the driver is paging to system memory. "
            f"Expect a slowdown of 5 to 50 times. Lower training.batch_size or the model size. {_REMEDY}."
        )
    if windows_driver:
        return (
            f"On Windows and WSL 2, the driver may page a full GPU ({capacity}) to system memory. Then "
            f"no out-of-memory error occurs, and amounts in such errors are not upper bounds. {_REMEDY}."
        )
    return None


def driver_paging_warning() -> str | None:
    """Return the paging warning for the current CUDA device, or `None` before CUDA is used."""
    if not torch.cuda.is_initialized():
        return None
    capacity = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    windows_driver = is_windows_driver(platform.system(), platform.release())
    return paging_warning(torch.cuda.memory_allocated(), capacity, windows_driver)
