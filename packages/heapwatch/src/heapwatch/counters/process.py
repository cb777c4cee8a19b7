"""Read what this process, its children and its files hold; MB = 1e6 bytes.

A count that a system does not have is None, or its key is absent: never 0.
"""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import psutil

from .cuda import gpu_memory_stats
from .glibc import in_use_bytes, kernel_counts

_BYTES_PER_BLOCK = 512  # POSIX: st_blocks counts these, whatever the file system's own block is
_SHARED_MEMORY = Path("/dev/shm")
_BYTES_PER_MB = 1e6
_NO_GPU = dict.fromkeys(("alloc_mb", "reserved_mb", "max_alloc_mb", "max_reserved_mb"), 0.0)


def memory_counters() -> dict[str, float]:
    """Return what the process and its GPU hold now, by the tag of a log line; 0 without a GPU."""
    tags = {f"debug/gpu/{name}": value for name, value in (gpu_memory_stats() or _NO_GPU).items()}
    return tags | {f"debug/cpu/{name}": value for name, value in host_memory_stats().items()}


def host_memory_stats() -> dict[str, float]:
    """Return what this process holds on the host; what the system does not count is absent.

    Returns:
        `rss_mb`; `in_use_mb`, held by live objects; `rss_anon_mb`, `rss_file_mb` and `rss_shmem_mb`, the
        resident memory by what backs it; `mapped_mb`, private memory that may be written, touched or not;
        `shared_memory_mb`, used in /dev/shm by everyone; `threads_count`; `open_files_count`;
        `children_count`, descendants that run.
    """
    stats = {"rss_mb": process_rss_mb(), "in_use_mb": in_use_bytes() / _BYTES_PER_MB}
    counted = kernel_counts()
    threads = {"threads_count": counted.pop("threads")} if "threads" in counted else {}
    stats |= {f"{name}_mb": size / _BYTES_PER_MB for name, size in counted.items()}
    shared = shared_memory_used_bytes()
    if shared is not None:
        stats["shared_memory_mb"] = shared / _BYTES_PER_MB
    counts = threads | {"open_files_count": open_files_count(), "children_count": live_children_count()}
    return stats | {name: float(count) for name, count in counts.items()}


def footprint_stats(folder: Path) -> dict[str, float]:
    """Return what a run takes, for reports: `disk_mb`, and `tree_pss_mb` where the system counts it."""
    stats = {"disk_mb": folder_disk_bytes(folder) / _BYTES_PER_MB}
    size = process_tree_pss_bytes()
    return stats if size is None else stats | {"tree_pss_mb": size / _BYTES_PER_MB}


def process_rss_mb() -> float:
    """Return the resident memory of this process in MB, shared pages and pages of mapped files included.

    Freed memory that the C allocator keeps counts too, that of child processes does not.
    """
    # A psutil.Process that was made before a fork reports the parent.
    return psutil.Process().memory_info().rss / _BYTES_PER_MB


def process_tree_pss_bytes() -> int | None:
    """Return the bytes of this process and its descendants, shared pages once; None where nobody counts."""
    total = 0
    for process in (psutil.Process(), *_descendants()):
        try:
            total += process.memory_full_info().pss
        except AttributeError:  # no Linux
            return None
        except psutil.Error:  # it has ended, or belongs to another user
            continue
    return total


def live_children_count() -> int:
    """Return how many descendants of this process run; those that ended but were not waited for are none."""
    if _has_no_children():
        return 0
    count = 0
    for child in _descendants():
        with suppress(psutil.NoSuchProcess):
            count += child.status() != psutil.STATUS_ZOMBIE
    return count


def open_files_count() -> int:
    """Return how many file descriptors this process holds, sockets and pipes too (on Windows: open files)."""
    process = psutil.Process()
    return process.num_fds() if psutil.POSIX else len(process.open_files())


def shared_memory_used_bytes() -> int | None:
    """Return the bytes used in /dev/shm by all processes, also by what dead ones left; None without it."""
    return shutil.disk_usage(_SHARED_MEMORY).used if _SHARED_MEMORY.is_dir() else None


def folder_disk_bytes(folder: Path) -> int:
    """Return the bytes that a folder's files take on disk; 0 if there is no such folder.

    A sparse file counts what is written of it, one with several names in the folder once, and what vanishes
    meanwhile 0. Links are not followed.
    """
    sizes: dict[tuple[int, int], int] = {}
    for base, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                found = os.lstat(os.path.join(base, name))
                if not stat.S_ISLNK(found.st_mode):
                    blocks = getattr(found, "st_blocks", None)  # absent on Windows
                    nbytes = found.st_size if blocks is None else blocks * _BYTES_PER_BLOCK
                    sizes[found.st_dev, found.st_ino] = nbytes
    return sum(sizes.values())


def _has_no_children() -> bool:
    """Return whether Linux says at once that no thread has a child: looking at all processes takes 2 ms."""
    try:
        children = [path.read_bytes() for path in Path("/proc/self/task").glob("*/children")]
    except OSError:  # a thread has ended meanwhile
        return False
    return bool(children) and not any(children)


def _descendants() -> list[psutil.Process]:
    # Made anew each time, for the same reason as in `process_rss_mb`.
    return psutil.Process().children(recursive=True)
