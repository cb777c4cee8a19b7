"""Code a chunk of consecutive records as its first record and every 64-bit word that changes after it.

Frames of a game differ in few words, so this is smaller than the frames' differences compressed byte by byte,
and painting a window copies frames and sets words: nothing of the size of a frame is decompressed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import zstandard
from jaxtyping import Int64, UInt64
from torch import Tensor

from .fields import FieldSpec

WORD = 8
LEVEL = 3
_DIRECT_BYTES = 256
_CHANGE_BYTES = WORD + 4  # the new word, and how many words after the last change it lies

Words = UInt64[np.ndarray, "_"]
Rows = UInt64[np.ndarray, "records _"]


@dataclass(frozen=True, slots=True)
class Changes:
    """A decoded chunk."""

    first: Words
    where: Int64[np.ndarray, "changes"]
    """Word of the record, in the order of records."""

    value: UInt64[np.ndarray, "changes"]
    bounds: list[int]
    """How many of the changes lie in the records up to each one; 0 for the first."""

    def paint(self, start: int, targets: list[tuple[slice, Rows]]) -> None:
        """Write records from `start` on into targets: words of a record, and the rows to fill."""
        record, where, value = self.first.copy(), self.where, self.value
        sources = [(record[words], target) for words, target in targets]
        done = self.bounds[start]
        record[where[:done]] = value[:done]  # of several changes of a word the last one stays
        for row, until in enumerate(self.bounds[start : start + len(targets[0][1])]):
            if until > done:
                record[where[done:until]] = value[done:until]
                done = until
            for source, target in sources:
                target[row] = source


class RecordLayout:
    """Places of the fields in a record of 64-bit words, large fields first."""

    def __init__(self, fields: Mapping[str, FieldSpec]) -> None:
        self.fields = dict(fields)
        self.direct = [
            name for name, spec in fields.items() if spec.nbytes % WORD == 0 and spec.nbytes >= _DIRECT_BYTES
        ]
        self._words: dict[str, slice] = {}
        stop = 0
        for name in (*self.direct, *(name for name in fields if name not in self.direct)):
            start, stop = stop, stop + -(-fields[name].nbytes // WORD)
            self._words[name] = slice(start, stop)
        self.num_words = stop
        self._small = slice(self._words[self.direct[-1]].stop if self.direct else 0, stop)

    def pack(self, values: Mapping[str, Tensor], rows: Rows) -> None:
        """Copy the values of all fields, (records, *field), into rows; padding stays as it is."""
        into = rows.view(np.uint8)
        for name, spec in self.fields.items():
            start = self._words[name].start * WORD
            into[:, start : start + spec.nbytes] = _bytes_of(values[name].contiguous(), len(rows))

    def unpack(self, rows: Rows, names: list[str]) -> dict[str, Tensor]:
        """Return copies of the named fields of packed rows."""
        specs = {name: self.fields[name].of(len(rows)) for name in names}
        values = {name: torch.empty(spec.shape, dtype=spec.dtype) for name, spec in specs.items()}
        self._unpack(rows, values, offset=0)
        return values

    def targets(self, out: Mapping[str, Tensor], count: int) -> tuple[list[tuple[slice, Rows]], Rows]:
        """Return where `Changes.paint` writes the fields of `out`, and the rows that hold the small ones."""
        small = np.empty((count, self._small.stop - self._small.start), np.uint64)
        found = [
            (self._words[name], _bytes_of(out[name], count).view(np.uint64))
            for name in self.direct
            if name in out
        ]
        return [*found, (self._small, small)], small

    def finish(self, small: Rows, out: Mapping[str, Tensor]) -> None:
        """Copy the small fields out of the rows that `targets` made for them."""
        named = {name: values for name, values in out.items() if name not in self.direct}
        self._unpack(small, named, offset=self._small.start)

    def _unpack(self, rows: Rows, out: Mapping[str, Tensor], offset: int) -> None:
        source = rows.view(np.uint8)
        for name, values in out.items():
            start = (self._words[name].start - offset) * WORD
            _bytes_of(values, len(rows))[:] = source[:, start : start + self.fields[name].nbytes]


class ChunkCodec:
    """Codes chunks of records of one layout; not for several threads at once."""

    def __init__(self, layout: RecordLayout) -> None:
        self.layout = layout
        # The checksum lets a flipped bit be found; it is of the content, so it also covers `LEVEL`.
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
        self._decompressor = zstandard.ZstdDecompressor()

    def encode(self, rows: Rows) -> bytes:
        """Return the code of records, never longer than their bytes."""
        position = np.flatnonzero(rows[1:] != rows[:-1])
        value = rows[1:].ravel()[position]
        gap = np.diff(position, prepend=-1).astype("<u4")
        planes = np.ascontiguousarray(gap.view(np.uint8).reshape(-1, 4).T)  # high bytes are nearly all zero
        code = self._compressor.compress(rows[0].tobytes() + value.tobytes() + planes.tobytes())
        return code if len(code) < rows.nbytes else rows.tobytes()

    def decode(self, code: bytes | memoryview, count: int) -> Changes:
        """Return what `encode` was given for `count` records.

        Raises:
            ValueError: If it is no such code; nothing larger than 1.5 times the records is allocated.
        """
        words, most = self.layout.num_words, (count - 1) * self.layout.num_words
        if len(code) == count * words * WORD:
            rows = np.frombuffer(code, np.uint64).reshape(count, words)
            where = np.tile(np.arange(words), count - 1)
            return Changes(rows[0], where, rows[1:].ravel(), [i * words for i in range(count)])
        try:
            size = zstandard.frame_content_size(code)
            if not words * WORD <= size <= words * WORD + most * _CHANGE_BYTES:
                raise ValueError(f"its content has {size:,} bytes")
            content = self._decompressor.decompress(code)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        changes, rest = divmod(len(content) - words * WORD, _CHANGE_BYTES)
        if rest:
            raise ValueError(f"its content has {len(content):,} bytes")
        first = np.frombuffer(content, np.uint64, words)
        value = np.frombuffer(content, np.uint64, changes, words * WORD)
        planes = np.frombuffer(content, np.uint8, 4 * changes, (words + changes) * WORD).reshape(4, -1)
        gap = planes[0].astype(np.int64)
        for index, plane in enumerate(planes[1:], start=1):
            if plane.any():  # seldom
                gap |= plane.astype(np.int64) << (8 * index)
        is_forward = gap.all()  # a gap of 0 would repeat a place
        position = np.cumsum(gap, out=gap)
        position -= 1
        if changes and not (is_forward and position[-1] < most):
            raise ValueError("its changes lie outside its records")
        starts = np.arange(count) * words
        bounds = np.searchsorted(position, starts)
        position -= np.repeat(starts[:-1], bounds[1:] - bounds[:-1])
        return Changes(first, position, value, bounds.tolist())

    def rows(self, code: bytes | memoryview, count: int) -> Rows:
        """Return the records of a code; raises as `decode` does."""
        rows = np.empty((count, self.layout.num_words), np.uint64)
        self.decode(code, count).paint(0, [(slice(None), rows)])
        return rows


def _bytes_of(values: Tensor, count: int) -> np.ndarray:
    """Return the memory of `count` records, contiguous, as (count, bytes of one)."""
    return values.view(torch.uint8).numpy().reshape(count, -1)
