"""Count the memory, files and processes of this process and its children. MB are 1e6 bytes.

A count that the system does not provide is `None` or absent, never 0.
"""

import re
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

from .cuda import cuda_in_use, gpu_memory_stats
from .glibc import in_use_bytes, kernel_counts, malloc_bytes

_SHARED_MEMORY = Path("/dev/shm")
# Matches the maps of blocks with a name, of memfd, of `mmap.mmap(-1, size)`, and of System V.
_SHARED_MAP = re.compile(r"^\S+ ...s .*(/dev/shm/|/memfd:|/dev/zero|/SYSV)")
_BYTES_PER_MB = 1e6
_NO_GPU = dict.fromkeys(("alloc_mb", "reserved_mb", "max_alloc_mb", "max_reserved_mb"), 0.0)


def memory_counters() -> dict[str, float]:
    """Return the current counters of the process and its GPU by log tag. GPU counters are 0 without a GPU."""
    tags = {f"debug/gpu/{name}": value for name, value in (gpu_memory_stats() or _NO_GPU).items()}
    return tags | {f"debug/cpu/{name}": value for name, value in host_memory_stats().items()}


def host_memory_stats() -> dict[str, float]:
    """Return this process's host-memory counters. Counts that the system does not provide are absent.

    Returns:
        `rss_mb`: resident memory. `in_use_mb`: memory of live objects. `rss_anon_mb`, `rss_file_mb` and
        `rss_shmem_mb`: resident memory by kind of backing. `mapped_mb`: writable private memory, touched or
        not. `shared_memory_mb`: /dev/shm usage of all processes. `threads_count`. `open_files_count`.
        `children_count`: running descendants.
    """
    stats = {"rss_mb": process_rss_mb(), "in_use_mb": in_use_bytes() / _BYTES_PER_MB}
    counted = kernel_counts()
    threads = {"threads_count": counted.pop("threads")} if "threads" in counted else {}
    stats |= {f"{name}_mb": size / _BYTES_PER_MB for name, size in counted.items()}
    if _SHARED_MEMORY.is_dir():
        # This includes leftovers of dead processes.
        stats["shared_memory_mb"] = shutil.disk_usage(_SHARED_MEMORY).used / _BYTES_PER_MB
    counts = threads | {"open_files_count": open_files_count(), "children_count": len(live_children())}
    return stats | {name: float(count) for name, count in counts.items()}


def process_rss_mb() -> float:
    """Return the resident memory of this process in MB, including shared pages and pages of mapped files.

    Freed memory cached by the C allocator counts. Memory of child processes does not.
    """
    # A psutil.Process created before a fork would report the parent.
    return psutil.Process().memory_info().rss / _BYTES_PER_MB


def live_children() -> list[psutil.Process]:
    """Return the running descendants of this process. Zombies do not count."""
    found = []
    # A cached psutil.Process would be wrong after a fork. See `process_rss_mb`.
    for child in () if _has_no_children() else psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def open_files_count() -> int:
    """Return the number of open file descriptors, including sockets and pipes (open files on Windows)."""
    return psutil.Process().num_fds() if psutil.POSIX else len(psutil.Process().open_files())


def outside_bytes() -> dict[str, int]:
    """Return the bytes of each kind of memory outside Python that has at least 1 MB.

    The kinds are the free blocks of the C allocator, machine code that is not in a file, mapped files and
    shared memory by path, the pool of pinned memory, and the private memory pools of CUDA graphs. Kinds that
    the system does not report are absent. Numbers in a path become `*`.
    """
    held, name = Counter({"free blocks of the C allocator": malloc_bytes("fordblks") or 0}), ""
    # psutil would build a list of all maps, and thereby change the memory in use.
    with suppress(OSError), open("/proc/self/smaps") as file:
        for first, second, *rest in map(str.split, file):
            if first == "Rss:":
                held[name] += int(second) * 1024
            elif not first.endswith(":"):
                path = "".join(rest[3:4]) or "compiled code" * ("x" in second)
                # Names of temporary files and shared memory contain random or increasing numbers.
                name = re.sub(r"[0-9a-f]{8,}|\d+", "*", path)
    # The pools are not tested on a GPU.
    held["pinned memory pool"] = int(gpu_memory_stats().get("pinned_reserved_mb", 0.0) * _BYTES_PER_MB)
    cuda = cuda_in_use()
    for each in cuda.memory_snapshot() if cuda else ():
        held["private pools of CUDA graphs"] += each["total_size"] * any(each["segment_pool_id"])
    return {kind: size for kind, size in held.items() if size >= _BYTES_PER_MB and kind[:1] not in "["}


def shared_bytes() -> int:
    """Return the size of all shared memory in the maps of this process, touched or not."""
    total = 0
    with suppress(OSError), open("/proc/self/maps") as file:
        for line in file:
            if _SHARED_MAP.search(line):
                start, end = line.partition(" ")[0].split("-")
                total += int(end, 16) - int(start, 16)
    return total


def _has_no_children() -> bool:
    """Return whether Linux reports no children for all threads. Scanning all processes would take 2 ms."""
    try:
        children = [path.read_bytes() for path in Path("/proc/self/task").glob("*/children")]
    except OSError:
        # A thread ended during the scan.
        return False
    return bool(children) and not any(children)
