"""Storage of records in one tensor per field, allocated once. `compressed.py` is the alternative."""

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ..utils.errors import UserError
from .config import ReplayStorage
from .fields import FieldSpec, ReplaySpec
from .plan import GIB, ReplayPlan, in_gib, largest_capacity

_NUMPY_DTYPES = (torch.uint8, torch.bool, torch.float16, torch.float32)

_WRITE_BYTES = 2**23


class Arena:
    """One tensor per field in host memory (ram), on `device` (cuda) or in memory-mapped files (mmap).

    Host memory is committed immediately. Mapped files reserve disk space in `directory` until the process
    exits.
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
        """Size of all rows in bytes, including unused rows."""
        return sum(field.untyped_storage().nbytes() for field in self._tensors.values())

    def index_nbytes(self) -> int:
        """Size in bytes of the tables that locate rows."""
        return 0

    def to_index_tensor(self, rows: Int64[np.ndarray, "..."]) -> Int64[Tensor, "..."]:
        """Convert row numbers to the index type of `read` and `write`."""
        return torch.from_numpy(rows).to(self.device)

    def empty(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return uninitialized memory for `shape` rows of a field, (*shape, *field)."""
        field = self._tensors[name]
        return field.new_empty(*shape, *field.shape[1:])

    def read(self, rows: Int64[Tensor, "..."], out: Mapping[str, Tensor]) -> None:
        """Copy fields of these rows into the contiguous tensors `out`, each (*rows.shape, *field)."""
        for name, values in out.items():
            torch.index_select(self._tensors[name], 0, rows.reshape(-1), out=values.flatten(0, rows.ndim - 1))

    def write(self, rows: Int64[Tensor, "rows"], values: Mapping[str, Tensor]) -> None:
        """Copy the values of all fields, each (rows, *field), into distinct rows, detached from the graph."""
        for name, given in values.items():
            field, value = self._tensors[name], given.detach()
            if field.is_cpu and value.is_cpu and value.dtype is field.dtype and field.dtype in _NUMPY_DTYPES:
                # `index_copy_` is 8 times slower for a few large rows.
                field.numpy()[rows.numpy()] = value.numpy()
            else:
                field.index_copy_(0, rows, value.to(self.device))

    def records(self, row: int, count: int) -> dict[str, Tensor]:
        """Return views of consecutive rows, for internal use only. They are saved without copying."""
        return {name: field[row : row + count] for name, field in self._tensors.items()}

    saved = records

    def has_room(self, chunks: int) -> bool:
        """Always true, because all rows are allocated. See `Room`."""
        return True

    def free(self, chunks: Int64[np.ndarray, "chunks"]) -> None:
        """Do nothing, because rows are overwritten. See `Room`."""

    def clear(self) -> None:
        """Delete all rows. This does nothing, because rows are overwritten."""


def allocate(spec: FieldSpec, storage: ReplayStorage, device: torch.device, directory: Path | None) -> Tensor:
    """Return zeros in the given type of memory. The memory is committed or reserved immediately."""
    if storage is ReplayStorage.mmap:
        assert directory is not None, "storage=mmap needs a folder"
        return _mapped(spec, directory)
    # Zeroing commits the pages now instead of at some later step of the run.
    return torch.empty(spec.shape, dtype=spec.dtype, device=device).zero_()


def check_storage(spec: ReplaySpec, plan: ReplayPlan, device: torch.device, directory: Path | None) -> None:
    """Check that the storage is available before anything is allocated.

    Raises:
        UserError: If storage is cuda but the device is not, or the disk is too full for mmap.
    """
    storage = spec.config.storage
    if storage is ReplayStorage.cuda and device.type != "cuda":
        raise UserError(
            f"buffer.storage=cuda needs device=cuda, got device={device}. Set buffer.storage=ram."
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
                f"where only {in_gib(free)} GiB are free. Lower {repair} or free some space."
            )


def _mapped(spec: FieldSpec, directory: Path) -> Tensor:
    """Return zeros in a mapped file with reserved blocks. The unlinked file disappears with the process."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor, path = tempfile.mkstemp(dir=directory, suffix=".arena")
    os.unlink(path)
    try:
        _reserve(descriptor, spec.nbytes)
        path, size = f"/dev/fd/{descriptor}", spec.nbytes // spec.dtype.itemsize
        return torch.from_file(path, shared=True, size=size, dtype=spec.dtype).view(spec.shape)
    finally:
        os.close(descriptor)


def _reserve(descriptor: int, nbytes: int) -> None:
    """Allocate a file's blocks now. A disk that fills up later would cause a SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, nbytes)
        return
    # macOS only reserves blocks for bytes that have been written.
    zeros = memoryview(bytes(min(nbytes, _WRITE_BYTES)))
    while nbytes > 0:
        nbytes -= os.write(descriptor, zeros[:nbytes])
