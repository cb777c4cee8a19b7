"""The bytes that live objects of this process hold on the heap: the CPU's `memory_allocated`.

glibc counts them itself, in every arena and thread, for PyTorch, NumPy and large Python objects; `pymalloc`
adds the small ones. Unlike resident memory the count falls at once when something is freed. Where glibc is
not the allocator (macOS, Windows, musl, or jemalloc and tcmalloc preloaded) its count would mean nothing: a
test at first use finds this out.
"""

import ctypes
from collections.abc import Callable
from functools import cache

import psutil
import torch

from .process import resident_bytes_by_kind
from .pymalloc import pymalloc_reader

_TEST_BYTES = 8_000_000
_TEST_TOLERANCE_BYTES = 256_000  # other threads allocate meanwhile
_TEST_TRIALS = 3


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of <malloc.h>, glibc 2.33 and later; all fields are bytes or counts of chunks."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def in_use_bytes() -> int:
    """Return the bytes that live heap objects of this process hold, from the source `in_use_source()` names.

    With `mallinfo2` it is exact but for freed blocks of up to 1,032 bytes that each thread caches, at most
    0.4 MB a thread. Memory that was never touched counts; mapped files and shared memory do not. The other
    two sources also count what was freed but is kept by the allocator.

    Cost: 35 us (of which pymalloc 30 us), and 20 us for each 1,000 free blocks, which glibc walks;
    of RssAnon 40 us; of USS 5 ms.
    """
    return _source()[1]()


def in_use_source() -> str:
    """Return where `in_use_bytes` comes from.

    "mallinfo2 + pymalloc" is exact; "mallinfo2" misses Python's small objects, or Python takes them from the
    C allocator; "RssAnon" and "USS" are resident memory, not what is in use.

    Cost: the first call allocates 8 MB and 10,000 floats as a test, 0.6 ms; later calls nothing.
    """
    return _source()[0]


@cache
def _source() -> tuple[str, Callable[[], int]]:
    read = _mallinfo2_reader()
    if read is not None and any(counts_allocations(read) for _ in range(_TEST_TRIALS)):
        read_small = pymalloc_reader()
        if read_small is None:
            return "mallinfo2", read
        return "mallinfo2 + pymalloc", lambda: read() + read_small()
    if "rss_anon" in resident_bytes_by_kind():
        return "RssAnon", lambda: resident_bytes_by_kind()["rss_anon"]
    return "USS", lambda: psutil.Process().memory_full_info().uss


def trim_heap() -> None:
    """Let glibc give all free pages back to the system; does nothing with another allocator.

    What stays resident then is in use, or shares a page with something that is.

    Cost: 0.2 us a page that goes back, and as much when it is needed again.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim


def counts_allocations(read: Callable[[], int]) -> bool:
    """Return whether a counter of bytes rises by 8 MB with a tensor of 8 MB, and falls with its end."""
    before = read()
    held = torch.empty(_TEST_BYTES, dtype=torch.uint8, device="cpu")
    during = read()
    del held
    after = read()
    expected = (before + _TEST_BYTES, before)
    return all(
        abs(found - wanted) <= _TEST_TOLERANCE_BYTES
        for found, wanted in zip((during, after), expected, strict=True)
    )


def system_bytes() -> int | None:
    """Return the bytes that glibc has taken from the system, in use or not; None without `mallinfo2`.

    Memory that a library, or Python's `mmap`, maps by itself is not among them.

    Cost: as `in_use_bytes`.
    """
    mallinfo2 = _mallinfo2()
    if mallinfo2 is None:
        return None
    info = mallinfo2()
    return info.arena + info.hblkhd


def _mallinfo2_reader() -> Callable[[], int] | None:
    """Return a function that reads glibc's count of what is in use, None where there is no `mallinfo2`."""
    mallinfo2 = _mallinfo2()
    if mallinfo2 is None:
        return None

    def read() -> int:
        info = mallinfo2()
        return info.uordblks + info.hblkhd  # from the arenas, and mapped one by one

    return read


@cache
def _mallinfo2() -> Callable[[], _Mallinfo2] | None:
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # no such symbol; no such library; Windows
        return None
    mallinfo2.argtypes = []
    mallinfo2.restype = _Mallinfo2
    return mallinfo2
