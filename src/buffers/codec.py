"""Encode a chunk of consecutive records as its first record and all later changes to 64-bit words.

Consecutive frames of a game differ in only a few words. The encoding is therefore smaller than compressed
byte-wise differences, and decoding a window only copies frames and sets words, without decompressing whole
frames.
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
# A change is stored as the new word and its distance, in words, from the previous change (4 bytes).
_CHANGE_BYTES = WORD + 4

Words = UInt64[np.ndarray, "_"]
Rows = UInt64[np.ndarray, "records _"]


@dataclass(frozen=True, slots=True)
class Changes:
    """A decoded chunk."""

    first: Words
    where: Int64[np.ndarray, "changes"]
    """Word that each change sets within its record, in record order."""

    value: UInt64[np.ndarray, "changes"]
    bounds: list[int]
    """Cumulative number of changes up to and including each record. It is 0 for the first record."""

    def paint(self, start: int, targets: list[tuple[slice, Rows]]) -> None:
        """Write consecutive records from `start` on. A target is a field's words and the rows to fill."""
        record, where, value = self.first.copy(), self.where, self.value
        sources = [(record[words], target) for words, target in targets]
        done = self.bounds[start]
        # If a word changes several times, the last value wins.
        record[where[:done]] = value[:done]
        for row, until in enumerate(self.bounds[start : start + len(targets[0][1])]):
            if until > done:
                record[where[done:until]] = value[done:until]
                done = until
            for source, target in sources:
                target[row] = source


class RecordLayout:
    """Offsets of the fields in a record of 64-bit words, large fields first."""

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
        """Copy the values of all fields, of shape (records, *field), into rows. Padding is not written."""
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
        """Return the targets of `Changes.paint` for the fields in `out`, and the rows for small fields."""
        small = np.empty((count, self._small.stop - self._small.start), np.uint64)
        found = [
            (self._words[name], _bytes_of(out[name], count).view(np.uint64))
            for name in self.direct
            if name in out
        ]
        return [*found, (self._small, small)], small

    def finish(self, small: Rows, out: Mapping[str, Tensor]) -> None:
        """Copy the small fields into `out` from the rows returned by `targets`."""
        named = {name: values for name, values in out.items() if name not in self.direct}
        self._unpack(small, named, offset=self._small.start)

    def _unpack(self, rows: Rows, out: Mapping[str, Tensor], offset: int) -> None:
        source = rows.view(np.uint8)
        for name, values in out.items():
            start = (self._words[name].start - offset) * WORD
            _bytes_of(values, len(rows))[:] = source[:, start : start + self.fields[name].nbytes]


class ChunkCodec:
    """Encodes and decodes chunks of records with one layout. This class is not thread-safe."""

    def __init__(self, layout: RecordLayout) -> None:
        self.layout = layout
        # The checksum covers the uncompressed content and detects flipped bits.
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
        self._decompressor = zstandard.ZstdDecompressor()

    def encode(self, rows: Rows) -> bytes:
        """Return the encoded records. The encoding is never longer than the records."""
        position = np.flatnonzero(rows[1:] != rows[:-1])
        value = rows[1:].ravel()[position]
        gap = np.diff(position, prepend=-1).astype("<u4")
        # Byte planes compress better, because nearly all high bytes are zero.
        planes = np.ascontiguousarray(gap.view(np.uint8).reshape(-1, 4).T)
        code = self._compressor.compress(rows[0].tobytes() + value.tobytes() + planes.tobytes())
        return code if len(code) < rows.nbytes else rows.tobytes()

    def decode(self, code: bytes | memoryview, count: int) -> Changes:
        """Decode a result of `encode` for `count` records.

        Raises:
            ValueError: If the encoding is invalid. Allocations never exceed 1.5 times the size of the
                records.
        """
        words, most = self.layout.num_words, (count - 1) * self.layout.num_words
        if len(code) == count * words * WORD:
            rows = np.frombuffer(code, np.uint64).reshape(count, words)
            where = np.tile(np.arange(words), count - 1)
            return Changes(rows[0], where, rows[1:].ravel(), [i * words for i in range(count)])
        try:
            size = zstandard.frame_content_size(code)
            if not words * WORD <= size <= words * WORD + most * _CHANGE_BYTES:
                raise ValueError(f"its content is {size:,} bytes long")
            content = self._decompressor.decompress(code)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        changes, rest = divmod(len(content) - words * WORD, _CHANGE_BYTES)
        if rest:
            raise ValueError(f"its content is {len(content):,} bytes long")
        first = np.frombuffer(content, np.uint64, words)
        value = np.frombuffer(content, np.uint64, changes, words * WORD)
        planes = np.frombuffer(content, np.uint8, 4 * changes, (words + changes) * WORD).reshape(4, -1)
        gap = planes[0].astype(np.int64)
        for index, plane in enumerate(planes[1:], start=1):
            if plane.any():
                gap |= plane.astype(np.int64) << (8 * index)
        # A gap of 0 would change the same position twice.
        is_forward = gap.all()
        position = np.cumsum(gap, out=gap)
        position -= 1
        if changes and not (is_forward and position[-1] < most):
            raise ValueError("its changes are outside its records")
        starts = np.arange(count) * words
        bounds = np.searchsorted(position, starts)
        position -= np.repeat(starts[:-1], bounds[1:] - bounds[:-1])
        return Changes(first, position, value, bounds.tolist())

    def rows(self, code: bytes | memoryview, count: int) -> Rows:
        """Return all decoded records. See `decode` for errors."""
        rows = np.empty((count, self.layout.num_words), np.uint64)
        self.decode(code, count).paint(0, [(slice(None), rows)])
        return rows


def _bytes_of(values: Tensor, count: int) -> np.ndarray:
    """Return the contiguous values of `count` records as a view of shape (count, bytes per record)."""
    return values.view(torch.uint8).numpy().reshape(count, -1)
