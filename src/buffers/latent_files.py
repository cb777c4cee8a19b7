"""Stored latents on disk: a chain of files, each with the rows that changed since the one before.

Replayed records get fresher latents, so no file of latents stays current. A checkpoint adds the rows that
changed to the chain. Before the rows added since the last complete set are as many as the records held, a
complete set begins a new chain: so the bytes written are at most twice those that changed, and a chain is at
most twice as long as the capacity.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int64

from ..utils.durable_io import FileRecord, corrupt_file_error, read_tensors, write_tensors
from .episode_index import EpisodeIndex
from .plan import LATENT_FIELDS, FieldSpec
from .segments import check_fields, has_size, new_path
from .storage import Arena

FILE_BYTES = 16_000_000
"""Most bytes of latents in one file, and so the most that is copied at once while saving or loading."""


@dataclass(frozen=True, slots=True)
class LatentFile:
    """A file with some rows of latents: fields (rows, ...), and the `env` and `index` of each row."""

    number: int
    """Files are read in this order; a later one overrides."""

    rows: int

    is_base: bool
    """Whether it is part of the complete set that begins the chain."""

    file: str
    """Name in the shared folder."""

    record: FileRecord


def write_latents(
    folder: Path,
    chain: list[LatentFile],
    index: EpisodeIndex,
    arena: Arena,
    changed: Bool[np.ndarray, "rows"],
) -> list[LatentFile]:
    """Write the latents that changed, or all if the chain becomes too long; return the new chain."""
    added = sum(int(changed[row : row + count].sum()) for _, _, count, row in index.records.held_spans())
    added += sum(link.rows for link in chain if not link.is_base)
    number = chain[-1].number + 1 if chain else 1
    is_damaged = not all(has_size(folder / link.file, link.record) for link in chain)
    chosen = changed
    if not chain or is_damaged or added >= index.total_steps:
        chain, chosen = [], None
    written: list[LatentFile] = []
    row_bytes = sum(arena.fields[name].nbytes for name in LATENT_FIELDS)
    for batch in _batches(index, chosen, max(1, FILE_BYTES // row_bytes)):
        path = new_path(folder, f"latents_{number:09d}")
        record = _write_batch(path, arena, *batch)
        written.append(LatentFile(number, batch.shape[1], not chain, path.name, record))
        number += 1
    return [*chain, *written]


def _write_batch(
    path: Path,
    arena: Arena,
    env: Int64[np.ndarray, "batch"],
    position: Int64[np.ndarray, "batch"],
    rows: Int64[np.ndarray, "batch"],
) -> FileRecord:
    """Write the latents of some rows; the only copy of them is made here."""
    tensors = {name: arena.gather(name, arena.to_index_tensor(rows)) for name in LATENT_FIELDS}
    tensors |= {"env": torch.from_numpy(env), "index": torch.from_numpy(position)}
    return write_tensors(path, tensors)


def check_latents(folder: Path, chain: list[LatentFile], tail: Sequence[int], arena: Arena) -> None:
    """Check that all files hold what `read_latents` expects, given the ends of the streams.

    Raises:
        UserError: Naming the first file that does not.
    """
    for link in chain:
        path = folder / link.file
        tensors = read_tensors(path)
        expected = {name: arena.fields[name].of(link.rows) for name in LATENT_FIELDS}
        owner = FieldSpec((link.rows,), torch.int64)
        check_fields(path, tensors, expected | {"env": owner, "index": owner})
        env, position = tensors["env"].numpy(), tensors["index"].numpy()
        is_known = (env >= 0) & (env < len(tail)) & (position >= 0)
        if not is_known.all() or not (position < np.array(tail)[env]).all():
            raise corrupt_file_error(path, "it holds latents of records that never were")


def read_latents(folder: Path, chain: list[LatentFile], index: EpisodeIndex, arena: Arena) -> None:
    """Fill `arena` with the latents of held records; skip those of evicted ones."""
    for link in chain:
        tensors = read_tensors(folder / link.file)
        env, position = tensors["env"].numpy(), tensors["index"].numpy()
        held = np.flatnonzero(position >= index.records.head[env])
        rows = arena.to_index_tensor(index.records.rows(env[held], position[held]))
        for name in LATENT_FIELDS:
            arena.write(name, rows, tensors[name][torch.from_numpy(held)])


def _batches(
    index: EpisodeIndex, chosen: Bool[np.ndarray, "rows"] | None, size: int
) -> Iterator[Int64[np.ndarray, "3 batch"]]:
    """Yield environment, stream index and row of the held records in `chosen` (None: all), `size` at once."""
    waiting = np.empty((3, 0), np.int64)
    for env, first, count, row in index.records.held_spans():
        at = np.arange(count) if chosen is None else np.flatnonzero(chosen[row : row + count])
        waiting = np.concatenate([waiting, [np.full(len(at), env), first + at, row + at]], axis=1)
        while waiting.shape[1] >= size:
            yield waiting[:, :size]
            waiting = waiting[:, size:]
    if waiting.size:
        yield waiting
