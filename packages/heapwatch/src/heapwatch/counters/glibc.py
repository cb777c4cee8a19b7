"""Read the bytes that live objects of this process hold on the heap: the CPU's `memory_allocated`.

glibc counts them, CPython's own allocator adds its small objects. Unlike resident memory the count falls at
once when something is freed. With another allocator it means nothing: a test at first use finds this out.
"""

import ctypes
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch

_STATUS = Path("/proc/self/status")
_STATUS_PART = re.compile(r"^(RssAnon|RssFile|RssShmem|VmData|Threads):\s*(\d+)( kB)?", re.MULTILINE)
_STATUS_NAMES = {"VmData": "mapped", "Threads": "threads"}
_TEST_BYTES, _TEST_TRIALS = 8_000_000, 3
_TEST_TOLERANCE_BYTES = 256_000  # other threads allocate meanwhile
_TEST_OBJECTS, _LEAST_OBJECT_BYTES = 10_000, 24  # floats, before rounding up
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_CHOICES = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}
_SMALL_OBJECTS = re.compile(rb"# bytes in allocated blocks\s*=\s*([\d,]+)")


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of <malloc.h>, glibc 2.33 and later; all fields are bytes or counts of chunks."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def in_use_bytes() -> int:
    """Return the bytes that live heap objects of this process hold, from the source `in_use_source()` names.

    With `mallinfo2` it is exact but for freed small blocks that each thread caches, at most 0.4 MB a thread.
    Memory that was never touched counts; mapped files and shared memory do not.
    """
    return _source()[1]()


def in_use_source() -> str:
    """Return where `in_use_bytes` comes from.

    "mallinfo2 + pymalloc" is exact; "mallinfo2" misses Python's small objects, or Python takes them from the
    C allocator; "RssAnon" and "USS" are resident memory, with what the allocator keeps.
    """
    return _source()[0]


def kernel_counts() -> dict[str, int]:
    """Return what the kernel counts of this process; {} where /proc does not say.

    In bytes: `rss_anon` is private memory: heap, arrays, and what the C allocator keeps for later; `rss_file`
    is mapped files and libraries, which the kernel can drop; `rss_shmem` is shared memory this process has
    touched; `mapped` is private memory that it may write, touched or not, stacks included. And `threads`.
    """
    return parse_status(_STATUS.read_text()) if _STATUS.is_file() else {}


def parse_status(text: str) -> dict[str, int]:
    """Return bytes and counts that the text of /proc/<pid>/status holds, {} where it has none."""
    return {
        _STATUS_NAMES.get(name, f"rss_{name[3:].lower()}"): int(number) * (1024 if in_kib else 1)
        for name, number, in_kib in _STATUS_PART.findall(text)  # what the file calls kB is 1024 bytes
    }


def keep_heap() -> None:
    """Let glibc keep what is freed, for the next update; does nothing with another allocator.

    It gives pages back whenever more than 64 MB at the end of the heap are free, and each update would ask
    for them again: 8 % of its time (docs/performance.md). `trim_heap` still gives all back. Who has chosen
    by the environment keeps that choice.
    """
    choose = _libc_function("mallopt", ctypes.c_int, ctypes.c_int, ctypes.c_int)
    if choose is not None and _CHOICES.isdisjoint(os.environ):
        choose(_TRIM_THRESHOLD, 2**31 - 1)
        choose(_MMAP_THRESHOLD, 2**25)  # where its own choice ends, which the line above switches off


def trim_heap() -> None:
    """Let glibc give all free pages back to the system; does nothing with another allocator."""
    trim = _libc_function("malloc_trim", ctypes.c_int, ctypes.c_size_t)
    if trim is not None:
        trim(0)


def counts_allocations(read: Callable[[], int]) -> bool:
    """Return whether a counter of bytes rises by 8 MB with a tensor of 8 MB, and falls with its end."""
    before = read()
    held = torch.empty(_TEST_BYTES, dtype=torch.uint8, device="cpu")
    rise = read() - before
    del held
    left = read() - before
    return max(abs(rise - _TEST_BYTES), abs(left)) <= _TEST_TOLERANCE_BYTES


def system_bytes() -> int | None:
    """Return the bytes that glibc has taken from the system, in use or not; None without `mallinfo2`."""
    return _malloc_bytes("arena")


def _malloc_bytes(of_arenas: str) -> int | None:
    """Return a count of `mallinfo2` for its arenas, with all that is mapped one by one; None without it."""
    mallinfo2 = _libc_function("mallinfo2", _Mallinfo2)
    info = None if mallinfo2 is None else mallinfo2()
    return None if info is None else getattr(info, of_arenas) + info.hblkhd


@cache
def _source() -> tuple[str, Callable[[], int]]:
    def read() -> int:
        return _malloc_bytes("uordblks") or 0

    if read() and any(counts_allocations(read) for _ in range(_TEST_TRIALS)):
        read_small = _small_objects_reader()
        if read_small is None:
            return "mallinfo2", read
        return "mallinfo2 + pymalloc", lambda: read() + read_small()
    if "rss_anon" in kernel_counts():
        return "RssAnon", lambda: kernel_counts()["rss_anon"]
    return "USS", lambda: psutil.Process().memory_full_info().uss


def _small_objects_reader() -> Callable[[], int] | None:
    """Return a function that reads the bytes of Python's live small objects, of up to 512 bytes each.

    CPython takes them from arenas that it maps itself, which the C allocator does not count. The interpreter
    prints its own count for debugging; here into memory. None without glibc, or where the interpreter has
    another allocator (PYTHONMALLOC=malloc, free-threaded builds).
    """
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    open_stream = _libc_function("open_memstream", pointer, ctypes.POINTER(pointer), ctypes.POINTER(size))
    close_stream = _libc_function("fclose", ctypes.c_int, pointer)
    free = _libc_function("free", None, pointer)
    # `pythonapi` calls it with the GIL held.
    write_statistics = getattr(ctypes.pythonapi, "_PyObject_DebugMallocStats", None)
    if open_stream is None or close_stream is None or free is None or write_statistics is None:
        return None
    write_statistics.argtypes = [pointer]

    def read() -> int:
        text, length = pointer(), size()
        stream = open_stream(ctypes.byref(text), ctypes.byref(length))
        write_statistics(stream)
        close_stream(stream)
        found = _SMALL_OBJECTS.search(ctypes.string_at(text, length.value))
        free(text)
        return int(found[1].replace(b",", b"")) if found else 0

    before = read()
    held = [float(value) for value in range(_TEST_OBJECTS)]
    rise = read() - before
    del held
    fall = before + rise - read()
    return read if min(rise, fall) >= _TEST_OBJECTS * _LEAST_OBJECT_BYTES else None


@cache
def _libc_function(name: str, result: Any, *arguments: Any) -> Callable[..., Any] | None:
    """Return a function of the C library, None where there is no such function."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # no such symbol; no such library; Windows
        return None
    function.argtypes, function.restype = list(arguments), result
    return function
