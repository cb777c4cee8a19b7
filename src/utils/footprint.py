"""Measure the disk space of a run, and the memory of its processes. MB are 1e6 bytes."""

import os
import stat
from contextlib import suppress
from pathlib import Path

import psutil

# POSIX: st_blocks uses this unit, whatever the file system's block size is.
_BYTES_PER_BLOCK = 512
_BYTES_PER_MB = 1e6


def footprint_stats(folder: Path) -> dict[str, float]:
    """Return a run's footprint for reports: `disk_mb`, and `tree_pss_mb` if the system provides it."""
    stats = {"disk_mb": folder_disk_bytes(folder) / _BYTES_PER_MB}
    size = process_tree_pss_bytes()
    return stats if size is None else stats | {"tree_pss_mb": size / _BYTES_PER_MB}


def process_tree_pss_bytes() -> int | None:
    """Return the bytes of this process and its descendants (shared pages once), or `None` if unavailable."""
    total = 0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except AttributeError:
            # Only Linux provides the PSS.
            return None
        except psutil.Error:
            # The process has ended or belongs to another user.
            continue
    return total


def folder_disk_bytes(folder: Path) -> int:
    """Return the disk usage of a folder in bytes, or 0 if it does not exist.

    Only the written parts of a sparse file count. Hard links within the folder count once. Files that vanish
    during the scan count as 0. Symbolic links are not followed.
    """
    sizes: dict[tuple[int, int], int] = {}
    for base, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                found = os.lstat(os.path.join(base, name))
                if not stat.S_ISLNK(found.st_mode):
                    sizes[found.st_dev, found.st_ino] = found.st_blocks * _BYTES_PER_BLOCK
    return sum(sizes.values())
