"""Records on disk, latents apart: files that are written once and shared by checkpoints.

A segment is a run of records of one environment's stream that fill a chunk up to its end. They never change
again, so its file serves every checkpoint that still holds one of them. Only records in partial chunks are
written again each time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..utils.durable_io import FileRecord, corrupt_file_error, read_tensors, write_tensors
from .episode_index import EpisodeIndex
from .plan import LATENT_FIELDS, FieldSpec
from .storage import Arena

BEGINS = "begins"
"""The field of a file that says which records begin an episode."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Records [start, stop) of one environment, by stream index, in one file."""

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
