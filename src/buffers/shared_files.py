"""The files that checkpoints share: full chunks of records, and stored latents."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

BEGINS = "begins"  # the field of a file that says which records begin an episode

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


@dataclass(frozen=True, slots=True)
class LatentFile:
    """A file with some rows of latents: fields (rows, ...), and the `env` and `index` of each row.

    A checkpoint adds the rows that changed to a chain of files. Before the rows added since the last complete
    set are as many as the records held, a complete set begins a new chain: so the bytes written are at most
    twice those that changed, and a chain is at most twice as long as the capacity.
    """

    number: int
    """Files are read in this order; a later one overrides."""

    rows: int

    is_base: bool
    """Whether it is part of the complete set that begins the chain."""

    file: str
    """Name in the shared folder."""

    record: FileRecord


def live_segments(folder: Path, segments: list[Segment], index: EpisodeIndex) -> list[Segment]:
    """Return the segments that still have a held record and a file; vanished ones are written again."""
    head = index.records.head.tolist()
    found, last = [], list(head)
    for segment in segments:  # oldest first; after a gap everything is written again
        is_held = head[segment.env] < segment.stop and segment.start <= last[segment.env]
        if is_held and _has_size(folder / segment.file, segment.record):
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
            path = _new_path(folder, f"env{env:03d}_record{first:09d}")
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


def read_records(
    folder: Path, open_path: Path, segments: list[Segment], streams: Mapping[str, Any], arena: Arena
) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
    """Yield environment, first stream index and fields of all saved records, given the state of the index.

    Raises:
        UserError: Naming the first file that has other fields than `arena`.
    """
    for segment in segments:
        expected = _specs(arena, segment.stop - segment.start)
        yield segment.env, segment.start, _read_checked(folder / segment.file, expected)
    rest = [(env, *span) for env, span in enumerate(_unwritten(segments, streams)) if span[0] < span[1]]
    expected = {
        f"{env}/{name}": spec
        for env, start, tail in rest
        for name, spec in _specs(arena, tail - start).items()
    }
    tensors = _read_checked(open_path, expected)
    for env, start, _ in rest:
        yield env, start, {name: tensors[f"{env}/{name}"] for name in _specs(arena, 0)}


def load_records(
    saved: Iterable[tuple[int, int, dict[str, Tensor]]], index: EpisodeIndex, arena: Arena
) -> None:
    """Fill `arena` and `begins` with those records of `read_records` that `index` holds."""
    for env, start, tensors in saved:
        first = max(start, int(index.records.head[env]))
        for at, count, row in index.records.spans(env, first, start + len(tensors[BEGINS])):
            for name, target in _fields(index, arena, row, count).items():
                target.copy_(tensors[name][at - start : at - start + count])


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
    is_damaged = not all(_has_size(folder / link.file, link.record) for link in chain)
    chosen = changed
    if not chain or is_damaged or added >= index.total_steps:
        chain, chosen = [], None
    row_bytes = sum(arena.fields[name].nbytes for name in LATENT_FIELDS)
    written: list[LatentFile] = []
    for env, position, rows in _batches(index, chosen, max(1, LATENT_FILE_BYTES // row_bytes)):
        path, where = _new_path(folder, f"latents_{number:09d}"), arena.to_index_tensor(rows)
        tensors = {name: arena.gather(name, where) for name in LATENT_FIELDS}
        tensors |= {"env": torch.from_numpy(env), "index": torch.from_numpy(position)}
        record = write_tensors(path, tensors)
        del tensors  # before the next batch is copied
        written.append(LatentFile(number, len(rows), not chain, path.name, record))
        number += 1
    return [*chain, *written]


def read_latents(
    folder: Path, chain: list[LatentFile], tail: Sequence[int], arena: Arena
) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of each file, given the ends of the streams.

    Raises:
        UserError: Naming the first file that holds something else.
    """
    for link in chain:
        path, owner = folder / link.file, FieldSpec((link.rows,), torch.int64)
        expected = {name: arena.fields[name].of(link.rows) for name in LATENT_FIELDS}
        tensors = _read_checked(path, expected | {"env": owner, "index": owner})
        env, position = tensors["env"].numpy(), tensors["index"].numpy()
        is_known = (env >= 0) & (env < len(tail)) & (position >= 0)
        if not is_known.all() or not (position < np.array(tail)[env]).all():
            raise corrupt_file_error(path, "it holds latents of records that never were")
        yield tensors


def load_latents(saved: Iterable[dict[str, Tensor]], index: EpisodeIndex, arena: Arena) -> None:
    """Fill `arena` with the latents of held records; skip those of evicted ones."""
    for tensors in saved:
        env, position = tensors["env"].numpy(), tensors["index"].numpy()
        held = np.flatnonzero(position >= index.records.head[env])
        rows = arena.to_index_tensor(index.records.rows(env[held], position[held]))
        for name in LATENT_FIELDS:
            arena.write(name, rows, tensors[name][torch.from_numpy(held)])


def _read_checked(path: Path, expected: Mapping[str, FieldSpec]) -> dict[str, Tensor]:
    """Return the tensors of a file that must be exactly those `expected`, by name."""
    tensors = read_tensors(path)
    found = {name: FieldSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    for name in sorted(found.keys() | expected.keys()):
        has, needs = found.get(name), expected.get(name)
        if has != needs:
            raise corrupt_file_error(path, f"{name} is {has or 'missing'} instead of {needs or 'missing'}")
    return tensors


def _has_size(path: Path, record: FileRecord) -> bool:
    """Return whether a file exists with its recorded size."""
    try:
        return path.stat().st_size == record.nbytes
    except OSError:
        return False


def _new_path(folder: Path, name: str) -> Path:
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
