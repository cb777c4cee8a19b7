"""Warn of a CUDA driver that keeps device memory in the machine's own memory.

Under Windows, and so in WSL2, the driver may answer a full card by placing allocations in system memory.
Nothing fails, everything becomes slow, and a later out-of-memory error shows more than the card has.
"""

import platform

import torch

_BYTES_PER_GB = 1e9
_REMEDY = (
    'Set "CUDA - Sysmem Fallback Policy" to "Prefer No Sysmem Fallback" in the NVIDIA control panel, or call '
    "torch.cuda.set_per_process_memory_fraction(1.0), so that a full card is an error"
)


def is_windows_driver(system: str, release: str) -> bool:
    """Return whether the GPU belongs to a Windows driver: on Windows, and in WSL, a kernel by Microsoft.

    Args:
        system: `platform.system()`.
        release: `platform.release()`.

    >>> is_windows_driver("Linux", "5.15.167.4-microsoft-standard-WSL2"), is_windows_driver("Linux", "6.8.0")
    (True, False)
    """
    return system == "Windows" or "microsoft" in release.lower()


def paging_warning(allocated_bytes: int, capacity_bytes: int, windows_driver: bool) -> str | None:
    """Return what a user has to know about paging by the driver, or None when there is nothing to know.

    Args:
        allocated_bytes: Bytes in live tensors, `torch.cuda.memory_allocated()`.
        capacity_bytes: Bytes that the card has.
        windows_driver: Whether the GPU belongs to a Windows driver.
    """
    capacity = f"{capacity_bytes / _BYTES_PER_GB:.2f} GB"
    if allocated_bytes > capacity_bytes:
        allocated = f"{allocated_bytes / _BYTES_PER_GB:.2f} GB"
        return (
            f"{allocated} are allocated on a card of {capacity}: the driver is paging to system memory, "
            f"expect a slowdown of 5 to 50 times. Lower training.batch_size or the model size. {_REMEDY}."
        )
    if windows_driver:
        return (
            f"Under Windows and WSL2 the driver may page a full card of {capacity} to system memory: no "
            f"out-of-memory error comes, and the amount in one is no upper bound. {_REMEDY}."
        )
    return None


def driver_paging_warning() -> str | None:
    """Return the warning for the current CUDA device as it is now; None without CUDA."""
    if not torch.cuda.is_available():
        return None
    capacity = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    windows_driver = is_windows_driver(platform.system(), platform.release())
    return paging_warning(torch.cuda.memory_allocated(), capacity, windows_driver)
