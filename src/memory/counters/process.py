"""Read what the operating system counts for this process, its children and its files.

A count that a system does not have is None, or its key is absent: never 0.
"""

import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import psutil

_BYTES_PER_BLOCK = 512  # POSIX: st_blocks counts these, whatever the file system's own block is
_SHARED_MEMORY = Path("/dev/shm")
_STATUS = Path("/proc/self/status")
_RESIDENT_PART = re.compile(r"^Rss(Anon|File|Shmem):\s*(\d+)", re.MULTILINE)


def resident_bytes_by_kind() -> dict[str, int]:
    """Return the resident bytes of this process by what backs them; {} where /proc does not say.

    `rss_anon` is private memory: heap, arrays, and what the C allocator keeps for later; `rss_file` is mapped
    files and libraries, which the kernel can drop; `rss_shmem` is shared memory this process has touched.
    """
    return parse_status(_STATUS.read_text()) if _STATUS.is_file() else {}


def parse_status(text: str) -> dict[str, int]:
    """Return the resident bytes by kind that the text of /proc/<pid>/status holds, {} where it has none."""
    # What the file calls kB is 1024 bytes.
    return {f"rss_{kind.lower()}": int(kib) * 1024 for kind, kib in _RESIDENT_PART.findall(text)}


def process_tree_pss_bytes() -> int | None:
    """Return the proportional bytes of this process and its descendants; None where nobody counts them.

    A page that n processes share counts 1/n in each, so the sum counts every page once: what the run takes
    from the machine, where adding up resident sizes would count shared observations many times.
    """
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
    """Return the bytes used in /dev/shm by all processes of the machine or container; None without it.

    What a dead worker left behind stays in this count.
    """
    return shutil.disk_usage(_SHARED_MEMORY).used if _SHARED_MEMORY.is_dir() else None


def folder_disk_bytes(folder: Path) -> int:
    """Return the bytes that a folder's files take on disk; 0 if there is no such folder.

    Allocated blocks are counted, so a sparse file counts what is written of it. Links are not followed, a
    file with several names in the folder counts once, and what vanishes meanwhile counts as 0.
    """
    sizes: dict[tuple[int, int], int] = {}
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                found = os.lstat(os.path.join(base, name))
            except FileNotFoundError:
                continue
            if not stat.S_ISLNK(found.st_mode):
                blocks = getattr(found, "st_blocks", None)  # absent on Windows
                nbytes = found.st_size if blocks is None else blocks * _BYTES_PER_BLOCK
                sizes[found.st_dev, found.st_ino] = nbytes
    return sum(sizes.values())


def _descendants() -> list[psutil.Process]:
    # Made anew each time: a psutil.Process that was made before a fork means the parent.
    return psutil.Process().children(recursive=True)
