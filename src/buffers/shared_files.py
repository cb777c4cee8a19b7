"""The files that checkpoints share: full chunks of records, and stored latents."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ..utils.durable_io import FileRecord, corrupt_file_error, read_tensors, write_tensors
from .config import LATENT_FIELDS, FieldSpec
from .episode_index import EpisodeIndex
from .storage import Arena

BEGINS = "begins"
"""The field of a file that says which records begin an episode."""

LATENT_FILE_BYTES = 16_000_000
"""Most bytes of latents in one file, and so the most that is copied at once while saving or loading."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Records [start, stop) of one environment, by stream index, in one file, latents apart.

    They fill a chunk up to its end and never change again, so the file serves every checkpoint that still
    holds one of them. Only records in partial chunks are written again each time.
    """

    env: int
    start: int
    stop: int
    file: str
    """Name in the shared folder."""

    record: FileRecord


def live_segments(folder: Path, segments: list[Segment], index: EpisodeIndex) -> list[Segment]:
    """Return the segments that still have a held record and a file; vanished ones are written again."""
    head = index.records.head
    kept = [s for s in segments if s.stop > head[s.env] and has_size(folder / s.file, s.record)]
    found: list[Segment] = []
    last = head.tolist()
    for segment in kept:  # oldest first; after a gap everything is written again
        if segment.start <= last[segment.env]:
            found.append(segment)
            last[segment.env] = segment.stop
    return found


def write_segments(
    folder: Path, segments: list[Segment], index: EpisodeIndex, arena: Arena
) -> Iterator[Segment]:
    """Write the full chunks that `segments` do not hold, a file each, and yield them."""
    length = index.records.chunk_length
    for env, (start, tail) in enumerate(_unwritten(segments, index.state_dict())):
        for first, count, row in index.records.spans(env, start, tail // length * length):
            path = new_path(folder, f"env{env:03d}_record{first:09d}")
            record = write_tensors(path, _fields(index, arena, row, count))
            yield Segment(env, first, first + count, path.name, record)


def write_partial_chunks(
    path: Path, segments: list[Segment], index: EpisodeIndex, arena: Arena
) -> FileRecord:
    """Write the held records outside all segments: less than a chunk of every environment."""
    tensors: dict[str, Tensor] = {}
    for env, (start, tail) in enumerate(_unwritten(segments, index.state_dict())):
        for _, count, row in index.records.spans(env, start, tail):
            fields = _fields(index, arena, row, count)
            tensors |= {f"{env}/{name}": values for name, values in fields.items()}
    return write_tensors(path, tensors)


def check_segments(
    folder: Path, open_path: Path, segments: list[Segment], streams: Mapping[str, Any], arena: Arena
) -> None:
    """Check that all files have the fields that `read_segments` expects, given the state of the index.

    Cost: opens every file and reads its header.

    Raises:
        UserError: Naming the first file that has others.
    """
    for segment in segments:
        path = folder / segment.file
        check_fields(path, read_tensors(path), _specs(arena, segment.stop - segment.start))
    expected = {
        f"{env}/{name}": spec
        for env, (start, stop) in enumerate(_unwritten(segments, streams))
        if start < stop
        for name, spec in _specs(arena, stop - start).items()
    }
    check_fields(open_path, read_tensors(open_path), expected)


def check_fields(path: Path, tensors: Mapping[str, Tensor], expected: Mapping[str, FieldSpec]) -> None:
    """Check that a file holds exactly the tensors `expected`, by name.

    Raises:
        UserError: Naming the file and a tensor that is wrong.
    """
    found = {name: FieldSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    for name in sorted(found.keys() | expected.keys()):
        has, needs = found.get(name), expected.get(name)
        if has != needs:
            raise corrupt_file_error(path, f"{name} is {has or 'missing'} instead of {needs or 'missing'}")


def read_segments(
    folder: Path, open_path: Path, segments: list[Segment], index: EpisodeIndex, arena: Arena
) -> None:
    """Fill `arena` and `begins` with the held records, which `index` must already describe."""
    for segment in segments:
        tensors = read_tensors(folder / segment.file)
        _load_records(tensors, segment.env, segment.start, segment.stop, index, arena)
    tensors = read_tensors(open_path)
    for env, (start, tail) in enumerate(_unwritten(segments, index.state_dict())):
        mine = {name: tensors[f"{env}/{name}"] for name in _specs(arena, 0) if start < tail}
        _load_records(mine, env, start, tail, index, arena)


def has_size(path: Path, record: FileRecord) -> bool:
    """Return whether a file exists with its recorded size."""
    try:
        return path.stat().st_size == record.nbytes
    except OSError:
        return False


def new_path(folder: Path, name: str) -> Path:
    """Return an unused path: existing files may belong to a checkpoint, so none is overwritten."""
    path, number = folder / f"{name}.safetensors", 2
    while path.exists():
        path, number = folder / f"{name}_{number}.safetensors", number + 1
    return path


def _unwritten(segments: list[Segment], streams: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return (start, tail) of the held records outside all segments, for each environment."""
    start = list(streams["head"])
    for segment in segments:
        start[segment.env] = max(start[segment.env], segment.stop)
    return list(zip(start, streams["tail"], strict=True))


def _specs(arena: Arena, count: int) -> dict[str, FieldSpec]:
    """Return the fields of `count` records in a file."""
    specs = {name: spec.of(count) for name, spec in arena.fields.items() if name not in LATENT_FIELDS}
    return specs | {BEGINS: FieldSpec((count,), torch.bool)}


def _fields(index: EpisodeIndex, arena: Arena, row: int, count: int) -> dict[str, Tensor]:
    """Return views of consecutive rows."""
    names = [name for name in arena.fields if name not in LATENT_FIELDS]
    begins = torch.from_numpy(index.begins[row : row + count])
    return {name: arena.view_rows(name, row, count) for name in names} | {BEGINS: begins}


def _load_records(
    tensors: Mapping[str, Tensor], env: int, start: int, stop: int, index: EpisodeIndex, arena: Arena
) -> None:
    """Copy the held records of [start, stop) into their rows."""
    first = max(start, int(index.records.head[env]))
    for at, count, row in index.records.spans(env, first, stop):
        for name, target in _fields(index, arena, row, count).items():
            target.copy_(tensors[name][at - start : at - start + count])


@dataclass(frozen=True, slots=True)
class LatentFile:
    """A file with some rows of latents: fields (rows, ...), and the `env` and `index` of each row.

    Replayed records get fresher latents, so no such file stays current. A checkpoint adds the rows that
    changed to a chain of files. Before the rows added since the last complete set are as many as the records
    held, a complete set begins a new chain: so the bytes written are at most twice those that changed, and a
    chain is at most twice as long as the capacity.
    """

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
    row_bytes = sum(arena.fields[name].nbytes for name in LATENT_FIELDS)
    written: list[LatentFile] = []
    for batch in _batches(index, chosen, max(1, LATENT_FILE_BYTES // row_bytes)):
        path = new_path(folder, f"latents_{number:09d}")
        record = write_tensors(path, _latents_of(arena, *batch))  # freed before the next batch
        written.append(LatentFile(number, batch.shape[1], not chain, path.name, record))
        number += 1
    return [*chain, *written]


def _latents_of(
    arena: Arena,
    env: Int64[np.ndarray, "batch"],
    position: Int64[np.ndarray, "batch"],
    rows: Int64[np.ndarray, "batch"],
) -> dict[str, Tensor]:
    """Return a copy of the latents of some rows, as they are in a file."""
    latents = {name: arena.gather(name, arena.to_index_tensor(rows)) for name in LATENT_FIELDS}
    return latents | {"env": torch.from_numpy(env), "index": torch.from_numpy(position)}


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
