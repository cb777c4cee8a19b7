"""Read what PyTorch's allocators hold on the GPU and in pinned host memory; warn of a driver that pages.

Under Windows and WSL2 the driver may answer a full card by placing allocations in system memory: nothing
fails, everything becomes slow, and a later out-of-memory error shows more than the card has.
"""

import platform
from collections.abc import Mapping
from typing import Any

import torch

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
"""Not `active_bytes`: PyTorch 2.11 counts what was freed as active for good (pytorch/pytorch#182404)."""
_REMEDY = (
    'Set "CUDA - Sysmem Fallback Policy" to "Prefer No Sysmem Fallback" in the NVIDIA control panel, or call '
    "torch.cuda.set_per_process_memory_fraction(1.0), so that a full card is an error"
)


def gpu_memory_stats() -> dict[str, float]:
    """Return what CUDA's caching allocator and pinned-host allocator hold, in MB; {} before the first use.

    Neither waits for the device nor makes a CUDA context. The keys of pinned memory come with its first use.

    Returns:
        `alloc_mb` in live tensors; `reserved_mb` taken from the driver, live and cached; `max_alloc_mb` and
        `max_reserved_mb`, their peaks since `torch.cuda.reset_peak_memory_stats()`; `small_pool_mb` and
        `large_pool_mb`, live tensors of at most and over 1 MiB; `inactive_split_mb`, free parts of segments
        in use, which cannot be given back; `pending_free_mb`, freed but waiting for a stream;
        `pinned_reserved_mb`, pinned host memory in use and cached.
    """
    if not torch.cuda.is_initialized():
        return {}
    stats = device_stats_mb(torch.cuda.memory_stats())
    pinned = torch.cuda.host_memory_stats().get(_PINNED)
    return stats if pinned is None else stats | {"pinned_reserved_mb": pinned / _BYTES_PER_MB}


def device_stats_mb(counters: Mapping[str, Any]) -> dict[str, float]:
    """Return the counters of `torch.cuda.memory_stats()` in MB; 0 for those it has not (before first use)."""
    stats = {name: counters.get(key, 0) / _BYTES_PER_MB for name, key in _DEVICE_COUNTERS.items()}
    allocated = counters.get(_DEVICE_COUNTERS["alloc_mb"], 0)
    # A block leaves "allocated" when its tensor dies, and "active" once every stream is done with it.
    active = counters.get("active_bytes.all.current", allocated)
    return stats | {"pending_free_mb": (active - allocated) / _BYTES_PER_MB}


def is_windows_driver(system: str, release: str) -> bool:
    """Return whether the GPU belongs to a Windows driver: on Windows, and in WSL, a kernel by Microsoft.

    >>> is_windows_driver("Linux", "5.15.167.4-microsoft-standard-WSL2"), is_windows_driver("Linux", "6.8.0")
    (True, False)
    """
    return system == "Windows" or "microsoft" in release.lower()


def paging_warning(allocated_bytes: int, capacity_bytes: int, windows_driver: bool) -> str | None:
    """Return what a user has to know about paging by the driver, None when there is nothing to know."""
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
    """Return the warning for the current CUDA device as it is now; None before CUDA is used."""
    if not torch.cuda.is_initialized():
        return None
    capacity = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    windows_driver = is_windows_driver(platform.system(), platform.release())
    return paging_warning(torch.cuda.memory_allocated(), capacity, windows_driver)
