"""Count the heap bytes of live objects, like `torch.cuda.memory_allocated` for the CPU.

The count adds glibc's allocations and the small objects of CPython's own allocator. Unlike resident memory,
it falls as soon as memory is freed. It is meaningless with another allocator, so a test at first use detects
other allocators.
"""

import ctypes
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

_STATUS = Path("/proc/self/status")
_STATUS_PART = re.compile(r"^(RssAnon|RssFile|RssShmem|VmData|Threads):\s*(\d+)( kB)?", re.MULTILINE)
_STATUS_NAMES = {"VmData": "mapped", "Threads": "threads"}
_TEST_BYTES, _TEST_TRIALS = 8_000_000, 3
# Other threads may allocate during the test.
_TEST_TOLERANCE_BYTES = 256_000
# The test objects are floats. Their size is a lower bound, before alignment.
_TEST_OBJECTS, _LEAST_OBJECT_BYTES = 10_000, 24
# These constants are from <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_CHOICES = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}
_SMALL_OBJECTS = re.compile(rb"# bytes in allocated blocks\s*=\s*([\d,]+)")
_FREE_LIST = re.compile(rb"(\d+) free .* \* (\d+) bytes each")
# The size of an object's header for the garbage collector, and the alignment of small objects.
_GRAIN_BYTES = 16


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of <malloc.h> (glibc 2.33 or later). All fields are bytes or chunk counts."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def in_use_bytes() -> int:
    """Return the heap bytes of this process's live objects, read from `in_use_source()`.

    With `mallinfo2` the count is exact except for each thread's cache of freed small blocks, at most 0.4 MB
    per thread. Allocated memory counts even if untouched. Mapped files and shared memory do not count.
    """
    return _source()[1]()


def in_use_source() -> str:
    """Return the source of `in_use_bytes`.

    "mallinfo2 + pymalloc" is exact. "mallinfo2" excludes Python's small objects, unless Python allocates them
    with the C allocator. "RssAnon" and "USS" are resident memory, including memory cached by the allocator.
    """
    return _source()[0]


def kernel_counts() -> dict[str, int]:
    """Return the kernel's counts for this process, or {} if /proc does not provide them.

    In bytes: `rss_anon` is private memory (heap, arrays and the C allocator's cache). `rss_file` is mapped
    files and libraries, which the kernel can drop. `rss_shmem` is shared memory touched by this process.
    `mapped` is writable private memory, touched or not, including stacks. `threads` is the number of threads.
    """
    return parse_status(_STATUS.read_text()) if _STATUS.is_file() else {}


def parse_status(text: str) -> dict[str, int]:
    """Return the bytes and counts in the text of /proc/<pid>/status, or {} if no line matches."""
    # A kB in this file is 1024 bytes.
    return {
        _STATUS_NAMES.get(name, f"rss_{name[3:].lower()}"): int(number) * (1024 if in_kib else 1)
        for name, number, in_kib in _STATUS_PART.findall(text)
    }


def keep_heap() -> None:
    """Make glibc keep freed memory for the next update. Other allocators are not affected.

    By default glibc returns pages whenever more than 64 MB at the end of the heap are free, and each update
    would request them again, which costs 8 % of its time (docs/performance.md). `trim_heap` still releases
    everything. Settings made through environment variables take precedence.
    """
    choose = _libc_function("mallopt", ctypes.c_int, ctypes.c_int, ctypes.c_int)
    if choose is not None and _CHOICES.isdisjoint(os.environ):
        choose(_TRIM_THRESHOLD, 2**31 - 1)
        # The previous call fixes the automatic mmap threshold. Raise it to the value that it could reach.
        choose(_MMAP_THRESHOLD, 2**25)


def trim_heap() -> None:
    """Make glibc return all free pages to the system. Other allocators are not affected."""
    trim = _libc_function("malloc_trim", ctypes.c_int, ctypes.c_size_t)
    if trim is not None:
        trim(0)


def counts_allocations(read: Callable[[], int]) -> bool:
    """Return whether a counter rises by 8 MB when an 8 MB array is created, and falls when it is freed."""
    before = read()
    held = np.empty(_TEST_BYTES, np.uint8)
    rise = read() - before
    del held
    return max(abs(rise - _TEST_BYTES), abs(read() - before)) <= _TEST_TOLERANCE_BYTES


def malloc_bytes(*fields: str) -> int | None:
    """Return the sum of some fields of `mallinfo2`, or `None` without `mallinfo2`.

    `arena` and `hblkhd` are the bytes that glibc obtained from the system. `uordblks` and `hblkhd` are in
    use, and `fordblks` are the free blocks.
    """
    mallinfo2 = _libc_function("mallinfo2", _Mallinfo2)
    info = None if mallinfo2 is None else mallinfo2()
    return None if info is None else sum(getattr(info, each) for each in fields)


@cache
def _source() -> tuple[str, Callable[[], int]]:
    def read() -> int:
        return malloc_bytes("uordblks", "hblkhd") or 0

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

    CPython places these objects in arenas that it maps itself, so the C allocator does not count them. The
    interpreter's debug statistics include them and are printed to memory here. Objects in free lists, which
    CPython keeps for reuse until a full garbage collection, are subtracted: up to 5 MB of tuples. Returns
    `None` without glibc, or if the interpreter uses another allocator (PYTHONMALLOC=malloc, free-threaded
    builds). tracemalloc hides the allocator from the statistics. While it is tracing, the bytes are estimated
    from the number of blocks and their latest mean size.
    """
    mean_bytes = 0.0
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    open_stream = _libc_function("open_memstream", pointer, ctypes.POINTER(pointer), ctypes.POINTER(size))
    close_stream = _libc_function("fclose", ctypes.c_int, pointer)
    free = _libc_function("free", None, pointer)
    # `pythonapi` keeps the GIL during the call.
    write_blocks = getattr(ctypes.pythonapi, "_PyObject_DebugMallocStats", None)
    write_free_lists = getattr(ctypes.pythonapi, "_PyObject_DebugTypeStats", None)
    if not (open_stream and close_stream and free and write_blocks and write_free_lists):
        return None

    def read() -> int:
        nonlocal mean_bytes
        text, length = pointer(), size()
        stream = pointer(open_stream(ctypes.byref(text), ctypes.byref(length)))
        write_blocks(stream)
        write_free_lists(stream)
        close_stream(stream)
        statistics = ctypes.string_at(text, length.value)
        free(text)
        found = _SMALL_OBJECTS.search(statistics)
        grains = sum(int(n) * (1 - -int(each) // _GRAIN_BYTES) for n, each in _FREE_LIST.findall(statistics))
        if found:
            mean_bytes = (int(found[1].replace(b",", b"")) - grains * _GRAIN_BYTES) / sys.getallocatedblocks()
        return round(mean_bytes * sys.getallocatedblocks())

    before = read()
    held = [float(value) for value in range(_TEST_OBJECTS)]
    rise = read() - before
    del held
    fall = before + rise - read()
    return read if min(rise, fall) >= _TEST_OBJECTS * _LEAST_OBJECT_BYTES else None


@cache
def _libc_function(name: str, result: Any, *arguments: Any) -> Callable[..., Any] | None:
    """Return a function of the C library, or `None` if it does not exist."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        # The symbol is missing, the library is missing, or the system is Windows.
        return None
    function.argtypes, function.restype = list(arguments), result
    return function
