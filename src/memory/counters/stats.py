"""Read what this process holds now, under the names that a log line has; MB = 1e6 bytes."""

from pathlib import Path

import psutil

from .cuda import gpu_memory_stats
from .glibc import in_use_bytes
from .process import (
    folder_disk_bytes,
    live_children_count,
    open_files_count,
    process_tree_pss_bytes,
    resident_bytes_by_kind,
    shared_memory_used_bytes,
)

_BYTES_PER_MB = 1e6
_NO_GPU = dict.fromkeys(("alloc_mb", "reserved_mb", "max_alloc_mb", "max_reserved_mb"), 0.0)


def process_rss_mb() -> float:
    """Return the resident memory of this process in MB, shared pages and pages of mapped files included.

    It counts what the operating system has given: memory that was freed but is kept by the C allocator counts
    too, that of child processes does not.
    """
    # A psutil.Process that was made before a fork reports the parent.
    return psutil.Process().memory_info().rss / _BYTES_PER_MB


def host_memory_stats() -> dict[str, float]:
    """Return what this process holds on the host, for each log line.

    Returns:
        `rss_mb`, as `process_rss_mb`; `in_use_mb`, held by live objects (`in_use_source()` says how exactly);
        `rss_anon_mb`, `rss_file_mb` and `rss_shmem_mb`, the resident memory by what backs it;
        `shared_memory_mb`, used in /dev/shm by everyone; `open_files_count`; `children_count`, descendants
        that run. What the system does not count is absent.
    """
    stats = {"rss_mb": process_rss_mb(), "in_use_mb": in_use_bytes() / _BYTES_PER_MB}
    stats |= {f"{name}_mb": size / _BYTES_PER_MB for name, size in resident_bytes_by_kind().items()}
    shared = shared_memory_used_bytes()
    if shared is not None:
        stats["shared_memory_mb"] = shared / _BYTES_PER_MB
    counts = {"open_files_count": open_files_count(), "children_count": live_children_count()}
    return stats | {name: float(count) for name, count in counts.items()}


def footprint_stats(folder: Path) -> dict[str, float]:
    """Return what a run takes from the machine, for reports.

    Returns:
        `disk_mb`, what the run's folder takes on disk; `tree_pss_mb`, memory of this process and its
        descendants with every shared page counted once, absent where the system does not count it.
    """
    stats = {"disk_mb": folder_disk_bytes(folder) / _BYTES_PER_MB}
    size = process_tree_pss_bytes()
    return stats if size is None else stats | {"tree_pss_mb": size / _BYTES_PER_MB}


def memory_counters() -> dict[str, float]:
    """Return what the process and its GPU hold now, by the tag of a log line; 0 without a GPU."""
    tags = {f"debug/gpu/{name}": value for name, value in (gpu_memory_stats() or _NO_GPU).items()}
    return tags | {f"debug/cpu/{name}": value for name, value in host_memory_stats().items()}
