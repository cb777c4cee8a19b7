"""Storage of byte strings of any length in one arena of equal-sized pages, allocated once."""

import numpy as np
from jaxtyping import Int64, UInt8

PAGE_BYTES = 256
"""Larger pages waste more bytes at the end of a string. Smaller pages need larger tables."""

_NUMBER = np.dtype(np.int32)
BYTES_PER_PAGE = PAGE_BYTES + 2 * _NUMBER.itemsize
BYTES_PER_STRING = 2 * _NUMBER.itemsize + 1


def pages_needed(nbytes: int) -> int:
    """Return the number of pages that a string of `nbytes` bytes needs."""
    return -(-nbytes // PAGE_BYTES)


class Pages:
    """Numbered strings in chains of (mostly adjacent) pages. `data` is the arena, (pages, PAGE_BYTES)."""

    def __init__(self, data: UInt8[np.ndarray, "pages bytes"], num_strings: int) -> None:
        self._data = data
        self._next = np.full(len(data), -1, _NUMBER)
        # The free pages form a stack.
        self._free = np.full(len(data), 0, _NUMBER)
        self._first = np.full(num_strings, 0, _NUMBER)
        self._nbytes = np.full(num_strings, 0, _NUMBER)
        self._is_whole = np.full(num_strings, False)
        self.clear()

    def clear(self) -> None:
        """Delete all strings."""
        self._free[:] = np.arange(len(self._data) - 1, -1, -1)
        self.num_free = len(self._free)
        self._nbytes[:] = 0

    @property
    def num_stored(self) -> int:
        """Number of stored strings."""
        return int(np.count_nonzero(self._nbytes))

    def nbytes_of_tables(self) -> int:
        """Size of all tables in bytes, excluding the arena."""
        tables = self._next, self._free, self._first, self._nbytes, self._is_whole
        return sum(table.nbytes for table in tables)

    def put(self, string: int, code: bytes) -> None:
        """Store a string under an unused number. The caller must ensure that enough pages are free."""
        count = pages_needed(len(code))
        assert 0 < count <= self.num_free and not self._nbytes[string], (
            "not enough pages, or the number is already in use"
        )
        self.num_free -= count
        pages = self._free[self.num_free : self.num_free + count][::-1]
        whole = len(code) // PAGE_BYTES
        self._data[pages[:whole]] = np.frombuffer(code, np.uint8, whole * PAGE_BYTES).reshape(
            whole, PAGE_BYTES
        )
        if rest := code[whole * PAGE_BYTES :]:
            self._data[pages[-1], : len(rest)] = np.frombuffer(rest, np.uint8)
        self._next[pages[:-1]] = pages[1:]
        self._first[string], self._nbytes[string] = pages[0], len(code)
        self._is_whole[string] = (np.diff(pages) == 1).all()

    def get(self, string: int) -> memoryview:
        """Return a view of a string, valid until the string is freed."""
        first, nbytes = int(self._first[string]), int(self._nbytes[string])
        is_whole = self._is_whole[string]
        pages = slice(first, first + pages_needed(nbytes)) if is_whole else self._pages(string)
        return self._data[pages].reshape(-1)[:nbytes].data

    def free(self, strings: Int64[np.ndarray, "strings"]) -> None:
        """Delete strings, ignoring numbers that are not in use."""
        for string in strings[self._nbytes[strings] > 0].tolist():
            pages = self._pages(string)
            self._free[self.num_free : self.num_free + len(pages)] = pages[::-1]
            self.num_free += len(pages)
            self._nbytes[string] = 0

    def _pages(self, string: int) -> list[int]:
        page, pages, follow = int(self._first[string]), [], self._next.item
        for _ in range(pages_needed(int(self._nbytes[string]))):
            pages.append(page)
            page = follow(page)
        return pages
