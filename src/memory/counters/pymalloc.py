"""Read the bytes of Python's small objects: floats, dicts, tuples, and everything else of up to 512 bytes.

CPython takes them from arenas that it maps itself, so the C allocator does not count them: a million floats
in a list raise its count by the 8 MB of the list alone. The interpreter prints its own count on request,
for debugging; here it prints into memory.
"""

import ctypes
import re
from collections.abc import Callable

_TEST_OBJECTS = 10_000
_TEST_BYTES = 240_000  # a float is 24 bytes, before rounding up
_ALLOCATED = re.compile(rb"# bytes in allocated blocks\s*=\s*([\d,]+)")


def pymalloc_reader() -> Callable[[], int] | None:
    """Return a function that reads the bytes of Python's live small objects; None where this cannot be done.

    It cannot without glibc, or where the interpreter has another allocator: with PYTHONMALLOC=malloc the C
    allocator counts them, free-threaded builds count nowhere. A test with 10,000 floats finds this out.
    """
    try:
        libc = ctypes.CDLL(None)
        open_stream, close_stream, free = libc.open_memstream, libc.fclose, libc.free
        write_statistics = ctypes.pythonapi._PyObject_DebugMallocStats  # called with the GIL held
    except (AttributeError, OSError, TypeError):
        return None
    open_stream.restype = ctypes.c_void_p
    open_stream.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t)]
    for function in (close_stream, free, write_statistics):
        function.argtypes = [ctypes.c_void_p]

    def read() -> int:
        text, length = ctypes.c_void_p(), ctypes.c_size_t()
        stream = open_stream(ctypes.byref(text), ctypes.byref(length))
        write_statistics(stream)
        close_stream(stream)
        found = _ALLOCATED.search(ctypes.string_at(text, length.value))
        free(text)
        return int(found[1].replace(b",", b"")) if found else 0

    return read if _counts_objects(read) else None


def _counts_objects(read: Callable[[], int]) -> bool:
    before = read()
    held = [float(value) for value in range(_TEST_OBJECTS)]
    rise = read() - before
    del held
    fall = before + rise - read()
    return min(rise, fall) >= _TEST_BYTES
