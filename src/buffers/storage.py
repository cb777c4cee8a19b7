"""The arena: one tensor for each field of all records, allocated once."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ..utils.errors import UserError
from .config import FieldSpec, ReplaySpec, ReplayStorage
from .plan import ReplayPlan, in_gib, largest_capacity

_NUMPY_DTYPES = (torch.uint8, torch.bool, torch.float16, torch.float32)

_WRITE_BYTES = 2**23


class Arena:
    """Rows of fields. Reading copies: nothing that leaves this class shares memory with it.

    Storage ram commits anonymous memory, cuda takes memory of `device`, mmap reserves disk space in
    `directory`, which is free again when the process ends.
    """

    def __init__(
        self, plan: ReplayPlan, storage: ReplayStorage, device: torch.device, directory: Path | None = None
    ) -> None:
        self.device = device if storage is ReplayStorage.cuda else torch.device("cpu")
        self.fields = plan.fields
        self._tensors: dict[str, Tensor] = {}
        for name, spec in plan.fields.items():
            if storage is ReplayStorage.mmap:
                assert directory is not None, "storage=mmap needs a folder"
                self._tensors[name] = _mapped(spec, plan.num_rows, directory)
            else:
                # Zeroed, so that the pages are committed now and not at some step of the run.
                memory = torch.empty((plan.num_rows, *spec.shape), dtype=spec.dtype, device=self.device)
                self._tensors[name] = memory.zero_()

    def nbytes(self) -> int:
        """Return the bytes of all fields, used or not."""
        return sum(field.untyped_storage().nbytes() for field in self._tensors.values())

    def to_index_tensor(self, rows: Int64[np.ndarray, "..."]) -> Int64[Tensor, "..."]:
        """Return row numbers on the device, as `gather` and `write` take them."""
        return torch.from_numpy(rows).to(self.device)

    def empty(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return uninitialised memory for `shape` rows of a field, (*shape, *field)."""
        field = self._tensors[name]
        return field.new_empty(*shape, *field.shape[1:])

    def gather(self, name: str, rows: Int64[Tensor, "..."], out: Tensor | None = None) -> Tensor:
        """Copy a field of the given rows into `out`, (*rows.shape, *field), contiguous; None: new memory."""
        out = self.empty(name, tuple(rows.shape)) if out is None else out
        torch.index_select(self._tensors[name], 0, rows.reshape(-1), out=out.flatten(0, rows.ndim - 1))
        return out

    def write(self, name: str, rows: Int64[Tensor, "rows"], values: Tensor) -> None:
        """Copy `values` (rows, *field) into distinct rows; their autograd graph never reaches the arena."""
        field, values = self._tensors[name], values.detach()
        if field.is_cpu and values.is_cpu and values.dtype is field.dtype and field.dtype in _NUMPY_DTYPES:
            # `index_copy_` goes through a few large rows 8 times slower.
            field.numpy()[rows.numpy()] = values.numpy()
        else:
            field.index_copy_(0, rows, values.to(self.device))

    def view_rows(self, name: str, row: int, count: int) -> Tensor:
        """Return a view of consecutive rows, for saving and loading; keep it inside this package."""
        return self._tensors[name][row : row + count]


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
            raise UserError(
                f"buffer.storage=mmap with buffer.capacity={spec.config.capacity} needs "
                f"{in_gib(plan.arena_bytes)} GiB in {directory}, where {in_gib(free)} GiB are free. "
                f"Lower buffer.capacity to {largest_capacity(spec, free):,} or free some space."
            )


def _mapped(spec: FieldSpec, num_rows: int, directory: Path) -> Tensor:
    """Return a tensor of zeros over an unlinked file whose disk blocks are reserved."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor, path = tempfile.mkstemp(dir=directory, suffix=".arena")
    os.unlink(path)  # at once, so that a killed process leaves no file behind
    try:
        _reserve(descriptor, num_rows * spec.nbytes)
        size = num_rows * (spec.nbytes // spec.dtype.itemsize)
        path = f"/dev/fd/{descriptor}"
        return torch.from_file(path, shared=True, size=size, dtype=spec.dtype).view(num_rows, *spec.shape)
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
