"""Read what PyTorch's allocators hold on the current CUDA device and in pinned host memory, by pool."""

from collections.abc import Mapping
from typing import Any

import torch

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
_ACTIVE = "active_bytes.all.current"
_PINNED_COUNTERS = {
    "pinned_reserved_mb": "allocated_bytes.current",
    "pinned_in_use_mb": "active_bytes.current",
}


def cuda_memory_stats() -> dict[str, float]:
    """Return what the CUDA caching allocator and the pinned-host allocator hold, in MB; {} without CUDA.

    Reads counters on the host: no synchronisation with the device, and no CUDA context is made. Pinned host
    memory has counters since PyTorch 2.8; before that, and before its first use, its keys are absent.

    Returns:
        `alloc_mb` in live tensors; `reserved_mb` taken from the driver, live and cached; `max_alloc_mb` and
        `max_reserved_mb`, the peaks since the process began or `torch.cuda.reset_peak_memory_stats()`;
        `small_pool_mb` and `large_pool_mb`, live tensors of at most and over 1 MiB, which sum to `alloc_mb`;
        `inactive_split_mb`, free parts of segments that also hold live blocks, so they cannot be given back;
        `pending_free_mb`, freed but waiting for a stream; `pinned_in_use_mb` and `pinned_reserved_mb`, pinned
        host memory in use, and with what is cached.
    """
    if not torch.cuda.is_available():
        return {}
    return device_stats_mb(torch.cuda.memory_stats()) | _pinned_stats_mb()


def device_stats_mb(counters: Mapping[str, Any]) -> dict[str, float]:
    """Return the device's counters in MB from those of `torch.cuda.memory_stats()`.

    A counter is 0 where PyTorch has none: it has none at all before the first use of the device.
    """
    stats = {name: counters.get(key, 0) / _BYTES_PER_MB for name, key in _DEVICE_COUNTERS.items()}
    allocated = counters.get(_DEVICE_COUNTERS["alloc_mb"], 0)
    # A block leaves "allocated" when its tensor dies, and "active" once every stream is done with it.
    return stats | {"pending_free_mb": (counters.get(_ACTIVE, allocated) - allocated) / _BYTES_PER_MB}


def _pinned_stats_mb() -> dict[str, float]:
    counters = getattr(torch.cuda, "host_memory_stats", dict)()
    return {name: counters[key] / _BYTES_PER_MB for name, key in _PINNED_COUNTERS.items() if key in counters}
