"""Read the counters of PyTorch's GPU and pinned-memory allocators, and warn of a driver that pages.

On Windows and WSL 2, the driver may place allocations in system memory when the card is full. Allocations
then succeed but become slow, and a later out-of-memory error reports more memory than the card has.
"""

import platform
from collections.abc import Mapping
from typing import Any

import torch

from .limits import memory_available_bytes

_BYTES_PER_MB, _BYTES_PER_GB = 1e6, 1e9
_DEVICE_COUNTERS = {
    "alloc_mb": "allocated_bytes.all.current",
    "reserved_mb": "reserved_bytes.all.current",
    "max_alloc_mb": "allocated_bytes.all.peak",
    "max_reserved_mb": "reserved_bytes.all.peak",
    "small_pool_mb": "allocated_bytes.small_pool.current",
    "large_pool_mb": "allocated_bytes.large_pool.current",
    "inactive_split_mb": "inactive_split_bytes.all.current",
}
_PINNED = "allocated_bytes.current"
"""`active_bytes` would be wrong: PyTorch 2.11 never subtracts freed memory (pytorch/pytorch#182404)."""
_REMEDY = (
    'Set "CUDA - Sysmem Fallback Policy" to "Prefer No Sysmem Fallback" in the NVIDIA control panel, or call '
    "torch.cuda.set_per_process_memory_fraction(1.0), so that a full card is an error"
)


def gpu_memory_stats() -> dict[str, float]:
    """Return the counters of CUDA's caching and pinned-host allocators in MB, or {} before the first use.

    The call does not synchronize with the device and does not create a CUDA context. The key of pinned memory
    appears after its first use.

    Returns:
        `alloc_mb`: live tensors. `reserved_mb`: live and cached memory obtained from the driver.
        `max_alloc_mb` and `max_reserved_mb`: peaks since `torch.cuda.reset_peak_memory_stats()`.
        `small_pool_mb` and `large_pool_mb`: live tensors up to and above 1 MiB. `inactive_split_mb`: free
        parts of segments in use, which cannot be released. `pending_free_mb`: freed memory that waits for a
        stream. `pinned_reserved_mb`: pinned host memory, in use and cached.
    """
    if not torch.cuda.is_initialized():
        return {}
    stats = device_stats_mb(torch.cuda.memory_stats())
    pinned = torch.cuda.host_memory_stats().get(_PINNED)
    return stats if pinned is None else stats | {"pinned_reserved_mb": pinned / _BYTES_PER_MB}


def device_stats_mb(counters: Mapping[str, Any]) -> dict[str, float]:
    """Convert the counters of `torch.cuda.memory_stats()` to MB. Counters absent before first use are 0."""
    stats = {name: counters.get(key, 0) / _BYTES_PER_MB for name, key in _DEVICE_COUNTERS.items()}
    allocated = counters.get(_DEVICE_COUNTERS["alloc_mb"], 0)
    # A block leaves "allocated" when its tensor dies, and "active" when all streams have finished with it.
    active = counters.get("active_bytes.all.current", allocated)
    return stats | {"pending_free_mb": (active - allocated) / _BYTES_PER_MB}


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
    """Return the paging warning for the current CUDA device, or `None` before CUDA is used."""
    if not torch.cuda.is_initialized():
        return None
    capacity = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    windows_driver = is_windows_driver(platform.system(), platform.release())
    return paging_warning(torch.cuda.memory_allocated(), capacity, windows_driver)


def headroom_bytes(on_gpu: bool) -> int:
    """Return the free memory of the current GPU, or of the host."""
    return torch.cuda.mem_get_info()[0] if on_gpu else memory_available_bytes()
