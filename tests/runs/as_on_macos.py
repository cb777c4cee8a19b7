"""Remove Linux features that macOS lacks from a process. The machine itself remains Linux."""

import collections
import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import psutil

_ABSENT_FOLDERS = ("/proc", "/dev/shm", "/sys")
_ABSENT_FUNCTIONS = ("mallinfo2", "malloc_trim", "prctl", "_PyObject_DebugMallocStats")
_ABSENT_CALLS = ("posix_fallocate", "sched_getaffinity", "memfd_create", "pidfd_open")
# psutil on macOS has no `pss`.
_Seen = collections.namedtuple("_Seen", "rss vms pfaults pageins uss")


def become_macos() -> None:
    """Hide /proc, /dev/shm, control groups, and functions of glibc, the kernel and psutil.

    Modules imported earlier have already seen the real system. Child processes are not affected.
    """
    from heapwatch.counters import glibc

    for name, instead in {"is_file": False, "is_dir": False, "exists": False, "glob": ()}.items():
        _hide(name, instead)
    for name in ("open", "read_text", "read_bytes"):
        _hide(name, FileNotFoundError(name))
    for name in _ABSENT_CALLS:
        delattr(os, name)
    ctypes.CDLL = _Library
    setattr(psutil.Process, "memory_full_info", _full_info)  # noqa: B010
    sys.platform = "darwin"
    glibc._source.cache_clear()
    glibc._libc_function.cache_clear()


class _Library(ctypes.CDLL):
    """A library without the functions that macOS lacks."""

    def __getattr__(self, name: str) -> Any:
        if name in _ABSENT_FUNCTIONS:
            raise AttributeError(name)
        return super().__getattr__(name)


def _hide(method: str, instead: Any) -> None:
    """Make a method of `Path` return or raise `instead` for the hidden folders."""
    real = getattr(Path, method)

    def seen(path: Path, *arguments: Any, **options: Any) -> Any:
        if not str(path).startswith(_ABSENT_FOLDERS):
            return real(path, *arguments, **options)
        if isinstance(instead, Exception):
            raise instead
        return instead

    setattr(Path, method, seen)


def _full_info(process: psutil.Process) -> _Seen:
    info = process.memory_info()
    return _Seen(info.rss, info.vms, 0, 0, info.rss)
