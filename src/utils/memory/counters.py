"""What this process holds now, as the operating system and the CUDA allocator count it; MB = 1e6 bytes."""

import psutil
import torch

_BYTES_PER_MB = 1e6
_CUDA_COUNTERS = {
    "alloc_mb": "allocated_bytes.all.current",
    "reserved_mb": "reserved_bytes.all.current",
    "max_alloc_mb": "allocated_bytes.all.peak",
    "max_reserved_mb": "reserved_bytes.all.peak",
}


def process_rss_mb() -> float:
    """Return the resident memory of this process in MB, shared pages and pages of mapped files included.

    It counts what the operating system has given: memory that was freed but is kept by the C allocator counts
    too, that of child processes does not.
    """
    # A psutil.Process made earlier would go on reporting the parent after a fork.
    return psutil.Process().memory_info().rss / _BYTES_PER_MB


def gpu_memory_stats() -> dict[str, float]:
    """Return what PyTorch's allocator holds on the current CUDA device, in MB; {} on a machine without CUDA.

    Reads counters on the host: no synchronisation with the device, and no CUDA context is made.

    Returns:
        `alloc_mb` in live tensors; `reserved_mb` taken from the driver, live and cached; `max_alloc_mb` and
        `max_reserved_mb`, the peaks since the process began or `torch.cuda.reset_peak_memory_stats()`.
    """
    if not torch.cuda.is_available():
        return {}
    counters = torch.cuda.memory_stats()  # empty before the first use of the device: nothing is held
    return {name: counters.get(key, 0) / _BYTES_PER_MB for name, key in _CUDA_COUNTERS.items()}
