"""Exact bytes in use, for tests of the buffer's declared size."""

import ctypes
import gc


class _MallInfo2(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def in_use_bytes() -> int:
    """Return the bytes allocated by malloc and not yet freed, including NumPy and torch."""
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _MallInfo2
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd
