"""Where records are: one tensor for each field, allocated once. `compressed.py` has the other way."""

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ..utils.errors import UserError
from .config import ReplayStorage
from .episode_index import Room
from .fields import FieldSpec, ReplaySpec
from .plan import GIB, ReplayPlan, in_gib, largest_capacity

_NUMPY_DTYPES = (torch.uint8, torch.bool, torch.float16, torch.float32)

_WRITE_BYTES = 2**23


@runtime_checkable
class RecordStore(Room, Protocol):
    """Rows of fields. Reading copies: nothing that leaves a store shares memory with it, but for saving."""

    fields: dict[str, FieldSpec]

    def nbytes(self) -> int:
        """Return the bytes of all rows, used or not."""
        ...

    def index_nbytes(self) -> int:
        """Return the bytes that tell where rows are."""
        ...

    def to_index_tensor(self, rows: Int64[np.ndarray, "..."]) -> Int64[Tensor, "..."]:
        """Return row numbers as `read` and `write` take them."""
        ...

    def empty(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return uninitialised memory for `shape` rows of a field, (*shape, *field)."""
        ...

    def read(self, rows: Int64[Tensor, "..."], out: Mapping[str, Tensor]) -> None:
        """Copy fields of the given rows into `out`, each (*rows.shape, *field), contiguous."""
        ...

    def write(self, rows: Int64[Tensor, "rows"], values: Mapping[str, Tensor]) -> None:
        """Copy values (rows, *field) of all fields into rows that follow those written before."""
        ...

    def records(self, row: int, count: int) -> dict[str, Tensor]:
        """Return consecutive rows of one chunk, views or copies; keep them inside this package."""
        ...

    def saved(self, row: int, count: int) -> dict[str, Tensor]:
        """Return what a file keeps of consecutive rows of one chunk: their fields, or one code."""
        ...

    def clear(self) -> None:
        """Forget all."""
        ...


class Arena:
    """A tensor for each field: of anonymous memory (ram), of `device` (cuda), or of files that are mapped.

    Storage ram commits its memory, mmap reserves disk space in `directory`, which is free again when the
    process ends.
    """

    def __init__(
        self,
        fields: Mapping[str, FieldSpec],
        num_rows: int,
        storage: ReplayStorage,
        device: torch.device,
        directory: Path | None = None,
    ) -> None:
        self.device = device if storage is ReplayStorage.cuda else torch.device("cpu")
        self.fields = dict(fields)
        self._tensors = {
            name: allocate(spec.of(num_rows), storage, self.device, directory)
            for name, spec in fields.items()
        }

    def nbytes(self) -> int:
        """See `RecordStore`."""
        return sum(field.untyped_storage().nbytes() for field in self._tensors.values())

    def index_nbytes(self) -> int:
        """See `RecordStore`."""
        return 0

    def to_index_tensor(self, rows: Int64[np.ndarray, "..."]) -> Int64[Tensor, "..."]:
        """See `RecordStore`."""
        return torch.from_numpy(rows).to(self.device)

    def empty(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `RecordStore`."""
        field = self._tensors[name]
        return field.new_empty(*shape, *field.shape[1:])

    def read(self, rows: Int64[Tensor, "..."], out: Mapping[str, Tensor]) -> None:
        """See `RecordStore`."""
        for name, values in out.items():
            torch.index_select(self._tensors[name], 0, rows.reshape(-1), out=values.flatten(0, rows.ndim - 1))

    def write(self, rows: Int64[Tensor, "rows"], values: Mapping[str, Tensor]) -> None:
        """See `RecordStore`; any distinct rows, and the values' autograd graph never reaches the arena."""
        for name, given in values.items():
            field, value = self._tensors[name], given.detach()
            if field.is_cpu and value.is_cpu and value.dtype is field.dtype and field.dtype in _NUMPY_DTYPES:
                # `index_copy_` goes through a few large rows 8 times slower.
                field.numpy()[rows.numpy()] = value.numpy()
            else:
                field.index_copy_(0, rows, value.to(self.device))

    def records(self, row: int, count: int) -> dict[str, Tensor]:
        """See `RecordStore`: views."""
        return {name: field[row : row + count] for name, field in self._tensors.items()}

    saved = records

    def has_room(self, chunks: int) -> bool:
        """See `RecordStore`: every row has its place."""
        return True

    def free(self, chunks: Int64[np.ndarray, "chunks"]) -> None:
        """See `RecordStore`: rows are written over."""

    def clear(self) -> None:
        """See `RecordStore`."""


def allocate(spec: FieldSpec, storage: ReplayStorage, device: torch.device, directory: Path | None) -> Tensor:
    """Return a tensor of zeros in the given kind of memory, committed or reserved now."""
    if storage is ReplayStorage.mmap:
        assert directory is not None, "storage=mmap needs a folder"
        return _mapped(spec, directory)
    # Zeroed, so that the pages are committed now and not at some step of the run.
    return torch.empty(spec.shape, dtype=spec.dtype, device=device).zero_()


def check_storage(spec: ReplaySpec, plan: ReplayPlan, device: torch.device, directory: Path | None) -> None:
    """Check that the arena has room, before anything is allocated.

    Raises:
        UserError: If cuda storage is set for another device, or the disk is too full for mmap.
    """
    storage = spec.config.storage
    if storage is ReplayStorage.cuda and device.type != "cuda":
        raise UserError(
            f"buffer.storage=cuda needs device=cuda, got device={device}. Use buffer.storage=ram."
        )
    if storage is ReplayStorage.mmap:
        assert directory is not None, "storage=mmap needs a folder"
        existing = next(f for f in (directory.absolute(), *directory.absolute().parents) if f.exists())
        free = shutil.disk_usage(existing).free
        if plan.arena_bytes > free:
            config = spec.config
            if config.compressed:
                asked = f"buffer.memory_budget_gib={config.memory_budget_gib:g}"
                most = math.floor(free / GIB * 1000) / 1000
                repair = f"buffer.memory_budget_gib to {most:g}"
            else:
                asked = f"buffer.capacity={config.capacity}"
                repair = f"buffer.capacity to {largest_capacity(spec, free):,}"
            raise UserError(
                f"buffer.storage=mmap with {asked} needs {in_gib(plan.arena_bytes)} GiB in {directory}, "
                f"where {in_gib(free)} GiB are free. Lower {repair} or free some space."
            )


def _mapped(spec: FieldSpec, directory: Path) -> Tensor:
    """Return a tensor of zeros over an unlinked file whose disk blocks are reserved."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor, path = tempfile.mkstemp(dir=directory, suffix=".arena")
    os.unlink(path)  # at once, so that a killed process leaves no file behind
    try:
        _reserve(descriptor, spec.nbytes)
        path, size = f"/dev/fd/{descriptor}", spec.nbytes // spec.dtype.itemsize
        return torch.from_file(path, shared=True, size=size, dtype=spec.dtype).view(spec.shape)
    finally:
        os.close(descriptor)


def _reserve(descriptor: int, nbytes: int) -> None:
    """Give a file its blocks now: a disk that fills up later must not kill the process with SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, nbytes)
        return
    zeros = memoryview(bytes(min(nbytes, _WRITE_BYTES)))  # macOS reserves blocks for written bytes only
    while nbytes > 0:
        nbytes -= os.write(descriptor, zeros[:nbytes])
