"""Record store for `buffer.compressed`: full chunks are encoded, and each stream's newest chunk stays raw."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ..utils.errors import UserError
from .codec import Changes, ChunkCodec, RecordLayout, Rows
from .fields import FieldSpec, ReplaySpec, step_fields_of
from .pages import PAGE_BYTES, Pages, pages_needed
from .plan import ReplayPlan
from .storage import Arena, allocate

CODED = "coded"
"""Name of the only field of encoded records in a file."""

_NONE = -1


class CompressedStore:
    """An `Arena` with a byte limit that encodes each chunk when its last row is written."""

    def __init__(self, spec: ReplaySpec, plan: ReplayPlan, directory: Path | None = None) -> None:
        self.fields = step_fields_of(plan.fields)
        self._length = spec.config.chunk_length
        self._codec = ChunkCodec(RecordLayout(self.fields))
        num_chunks = plan.num_rows // self._length
        pages = FieldSpec((plan.num_pages, PAGE_BYTES), torch.uint8)
        self._data = allocate(pages, spec.config.storage, torch.device("cpu"), directory).numpy()
        self._pages = Pages(self._data, num_chunks)
        raw = spec.num_envs, self._length, self._codec.layout.num_words
        # `np.full` writes to the pages, so that their memory is committed now.
        self._raw = np.full(raw, 0, np.uint64)
        # Index of each chunk in `_raw`, or `_NONE`.
        self._slot = np.full(num_chunks, _NONE, np.int32)
        self._free = np.arange(spec.num_envs, dtype=np.int32)
        self._num_free = spec.num_envs
        self._most_pages = pages_needed(self._raw[0].nbytes)

    def nbytes(self) -> int:
        """Size of the encoded and raw chunks in bytes, including unused pages."""
        return self._data.nbytes + self._raw.nbytes

    def index_nbytes(self) -> int:
        """See `Arena`."""
        return self._pages.nbytes_of_tables() + self._slot.nbytes + self._free.nbytes

    @property
    def used_bytes(self) -> int:
        """Total size of the pages in use, in bytes."""
        return (len(self._data) - self._pages.num_free) * PAGE_BYTES

    @property
    def most_bytes(self) -> int:
        """Total size of all pages, in bytes."""
        return self._data.nbytes

    @property
    def row_bytes(self) -> float | None:
        """Mean number of page bytes per encoded row, or `None` before the first chunk is encoded."""
        coded = self._pages.num_stored * self._length
        return self.used_bytes / coded if coded else None

    def to_index_tensor(self, rows: Int64[np.ndarray, "..."]) -> Int64[Tensor, "..."]:
        """See `Arena`."""
        return torch.from_numpy(rows)

    def empty(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `Arena`."""
        spec = self.fields[name]
        return torch.empty(*shape, *spec.shape, dtype=spec.dtype)

    def read(self, rows: Int64[Tensor, "..."], out: Mapping[str, Tensor]) -> None:
        """See `Arena`. Consecutive rows of a chunk are decoded together.

        Raises:
            UserError: If an encoded chunk in memory is corrupt.
        """
        layout, wanted = self._codec.layout, rows.numpy().ravel()
        if not len(wanted):
            return
        targets, small = layout.targets(out, len(wanted))
        chunks, offsets = np.divmod(wanted, self._length)
        breaks = np.flatnonzero((np.diff(wanted) != 1) | (np.diff(chunks) != 0)) + 1
        for start, stop in pairwise([0, *breaks.tolist(), len(wanted)]):
            chunk, offset = int(chunks[start]), int(offsets[start])
            pieces = [(words, target[start:stop]) for words, target in targets]
            if (slot := self._slot[chunk]) != _NONE:
                for words, piece in pieces:
                    piece[:] = self._raw[slot, offset : offset + stop - start, words]
            else:
                self._decoded(chunk).paint(offset, pieces)
        layout.finish(small, out)

    def _decoded(self, chunk: int) -> Changes:
        try:
            return self._codec.decode(self._pages.get(chunk), self._length)
        except ValueError as error:
            raise UserError(
                f"Chunk {chunk} of the replay is corrupt in memory ({error}). Resume from the newest "
                "checkpoint, and test the memory of this machine."
            ) from error

    def write(self, rows: Int64[Tensor, "rows"], values: Mapping[str, Tensor]) -> None:
        """Copy the values of all fields, each (rows, *field), into the rows after the last written row."""
        packed = np.zeros((len(rows), self._raw.shape[2]), np.uint64)
        self._codec.layout.pack({name: each.cpu() for name, each in values.items()}, packed)
        chunks, offsets = np.divmod(rows.numpy(), self._length)
        breaks = np.flatnonzero(np.diff(chunks)) + 1
        for start, stop in pairwise([0, *breaks.tolist(), len(chunks)]):
            chunk, offset = int(chunks[start]), int(offsets[start])
            slot = self._slot_of(chunk)
            self._raw[slot, offset : offset + stop - start] = packed[start:stop]
            if offset + stop - start == self._length:
                self._close(chunk)

    def _slot_of(self, chunk: int) -> int:
        """Return the index of a chunk in `_raw`, assigning a free one if necessary."""
        if self._slot[chunk] == _NONE:
            self._num_free -= 1
            assert self._num_free >= 0, "more open chunks than streams"
            self._slot[chunk] = self._free[self._num_free]
            # A stream may begin inside its chunk. The rows before its start must not contain old data.
            self._raw[self._slot[chunk]] = 0
        return int(self._slot[chunk])

    def _close(self, chunk: int) -> None:
        """Encode a full chunk."""
        code = self._codec.encode(self._raw[self._slot[chunk]])
        # The pages can only run out while loading, because `add` makes room first.
        if pages_needed(len(code)) > self._pages.num_free:
            raise UserError(
                f"the saved records do not fit into buffer.memory_budget_gib: the budget is full after "
                f"{self.used_bytes:,} bytes of encoded records. Raise buffer.memory_budget_gib."
            )
        self._pages.put(chunk, code)
        self._release(chunk)

    def _release(self, chunk: int) -> None:
        if self._slot[chunk] != _NONE:
            self._free[self._num_free] = self._slot[chunk]
            self._num_free += 1
            self._slot[chunk] = _NONE

    def records(self, row: int, count: int) -> dict[str, Tensor]:
        """Return copies of consecutive rows of one chunk."""
        return self._codec.layout.unpack(self._packed(row, count), list(self.fields))

    def saved(self, row: int, count: int) -> dict[str, Tensor]:
        """Return consecutive rows of one chunk in encoded form, as uint8 of shape (bytes,), by field name."""
        chunk = row // self._length
        if count == self._length and self._slot[chunk] == _NONE:
            # Decoding verifies the encoding, so that corrupt memory is never saved in a checkpoint.
            self._decoded(chunk)
            code = self._pages.get(chunk)
        else:
            code = self._codec.encode(self._packed(row, count))
        return {CODED: torch.from_numpy(np.frombuffer(code, np.uint8).copy())}

    def _packed(self, row: int, count: int) -> Rows:
        chunk, offset = divmod(row, self._length)
        if (slot := self._slot[chunk]) != _NONE:
            return self._raw[slot, offset : offset + count].copy()
        rows = np.empty((count, self._raw.shape[2]), np.uint64)
        self._decoded(chunk).paint(offset, [(slice(None), rows)])
        return rows

    def has_room(self, chunks: int) -> bool:
        """See `Room`."""
        return self._pages.num_free >= chunks * self._most_pages

    def free(self, chunks: Int64[np.ndarray, "chunks"]) -> None:
        """See `Room`."""
        self._pages.free(chunks)
        for chunk in chunks.tolist():
            self._release(chunk)

    def clear(self) -> None:
        """See `Arena`."""
        self._pages.clear()
        self._slot[:] = _NONE
        self._free[:] = np.arange(len(self._free))
        self._num_free = len(self._free)


RecordStore = Arena | CompressedStore
"""Rows of fields, stored as plain tensors or encoded."""


def decode_saved(
    tensors: dict[str, Tensor], fields: Mapping[str, FieldSpec], count: int
) -> dict[str, Tensor]:
    """Return the fields of saved records, encoded or not. Raise `ValueError` for an invalid encoding."""
    if CODED not in tensors:
        return tensors
    code, codec = tensors[CODED], ChunkCodec(RecordLayout(fields))
    if code.dtype is not torch.uint8 or code.ndim != 1:
        raise ValueError(f"{CODED} is {code.dtype} {tuple(code.shape)}")
    rows = codec.rows(code.numpy().data, count)
    others = {name: values for name, values in tensors.items() if name != CODED}
    return others | codec.layout.unpack(rows, list(fields))
