"""Read the counters of PyTorch's GPU and pinned-memory allocators."""

from collections.abc import Mapping
from typing import Any

from ..pytorch import TORCH
from .limits import memory_available_bytes

_BYTES_PER_MB = 1e6
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


def cuda_in_use() -> Any | None:
    """Return the module `torch.cuda`, or `None` before the program uses CUDA."""
    torch = TORCH.refresh()
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


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
    cuda = cuda_in_use()
    if cuda is None:
        return {}
    stats = device_stats_mb(cuda.memory_stats())
    pinned = cuda.host_memory_stats().get(_PINNED)
    return stats if pinned is None else stats | {"pinned_reserved_mb": pinned / _BYTES_PER_MB}


def device_stats_mb(counters: Mapping[str, Any]) -> dict[str, float]:
    """Convert the counters of `torch.cuda.memory_stats()` to MB. Counters absent before first use are 0."""
    stats = {name: counters.get(key, 0) / _BYTES_PER_MB for name, key in _DEVICE_COUNTERS.items()}
    allocated = counters.get(_DEVICE_COUNTERS["alloc_mb"], 0)
    # A block leaves "allocated" when its tensor dies, and "active" when all streams have finished with it.
    active = counters.get("active_bytes.all.current", allocated)
    return stats | {"pending_free_mb": (active - allocated) / _BYTES_PER_MB}


def headroom_bytes(on_gpu: bool) -> int:
    """Return the free memory of the current GPU, or of the host."""
    return TORCH.module.cuda.mem_get_info()[0] if on_gpu else memory_available_bytes()
