"""Records on disk, latents apart: files that are written once and shared by checkpoints.

A segment is a run of records of one environment's stream that fill a chunk up to its end. They never change
again, so its file serves every checkpoint that still holds one of them. Only records in partial chunks are
written again each time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..utils.durable_io import FileRecord, corrupt_file_error, read_tensors, write_tensors
from .episode_index import EpisodeIndex
from .storage import Arena

BEGINS = "begins"
LATENT_FIELDS = ("deter", "stoch")


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
    for env, (start, tail) in enumerate(_unwritten(segments, *_held(index))):
        for first, count, row in index.records.spans(env, start, tail // length * length):
            path = new_path(folder, f"env{env:03d}_record{first:09d}")
            record = write_tensors(path, _fields(index, arena, row, count))
            yield Segment(env, first, first + count, path.name, record)


def write_partial_chunks(
    path: Path, segments: list[Segment], index: EpisodeIndex, arena: Arena
) -> FileRecord:
    """Write the held records outside all segments: less than a chunk of every environment."""
    tensors: dict[str, Tensor] = {}
    for env, (start, tail) in enumerate(_unwritten(segments, *_held(index))):
        for _, count, row in index.records.spans(env, start, tail):
            fields = _fields(index, arena, row, count)
            tensors |= {f"{env}/{name}": values for name, values in fields.items()}
    return write_tensors(path, tensors)


def check_segments(
    folder: Path,
    open_path: Path,
    segments: list[Segment],
    head: Sequence[int],
    tail: Sequence[int],
    arena: Arena,
) -> None:
    """Check that all files have the fields that `read_segments` expects, given which records are held.

    Raises:
        UserError: Naming the first file that has others.

    Cost: opens every file and reads its header.
    """
    for segment in segments:
        fields = _expected(arena, segment.stop - segment.start)
        check_fields(folder / segment.file, read_tensors(folder / segment.file), fields)
    fields = {
        f"{env}/{name}": kind
        for env, (start, stop) in enumerate(_unwritten(segments, head, tail))
        if start < stop
        for name, kind in _expected(arena, stop - start).items()
    }
    check_fields(open_path, read_tensors(open_path), fields)


def check_fields(
    path: Path, tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
) -> None:
    """Check that a file holds exactly the tensors `expected`, by name, dtype and shape.

    Raises:
        UserError: Naming the file and a tensor that is wrong.
    """
    for name in sorted(tensors.keys() | expected.keys()):
        found = (tensors[name].dtype, tuple(tensors[name].shape)) if name in tensors else None
        if found != expected.get(name):
            raise corrupt_file_error(path, f"{name} is {_kind(found)} instead of {_kind(expected.get(name))}")


def _kind(field: tuple[torch.dtype, tuple[int, ...]] | None) -> str:
    return "missing" if field is None else f"{str(field[0]).removeprefix('torch.')} {field[1]}"


def read_segments(
    folder: Path, open_path: Path, segments: list[Segment], index: EpisodeIndex, arena: Arena
) -> None:
    """Fill `arena` and `begins` with the held records, which `index` must already describe."""
    for segment in segments:
        tensors = read_tensors(folder / segment.file)
        _load_records(tensors, segment.env, segment.start, segment.stop, index, arena)
    tensors = read_tensors(open_path)
    for env, (start, tail) in enumerate(_unwritten(segments, *_held(index))):
        mine = {name: tensors[f"{env}/{name}"] for name in (*_names(arena), BEGINS) if start < tail}
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


def _held(index: EpisodeIndex) -> tuple[list[int], list[int]]:
    """Return head and tail of every environment."""
    return index.records.head.tolist(), index.records.tail.tolist()


def _unwritten(segments: list[Segment], head: Sequence[int], tail: Sequence[int]) -> list[tuple[int, int]]:
    """Return (start, tail) of the held records outside all segments, for each environment."""
    start = list(head)
    for segment in segments:
        start[segment.env] = max(start[segment.env], segment.stop)
    return list(zip(start, tail, strict=True))


def _expected(arena: Arena, count: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Return dtype and shape of the fields of `count` records in a file."""
    rows = {name: arena.view_rows(name, 0, 1) for name in _names(arena)}
    return {name: (row.dtype, (count, *row.shape[1:])) for name, row in rows.items()} | {
        BEGINS: (torch.bool, (count,))
    }


def _names(arena: Arena) -> list[str]:
    return [name for name in arena.names if name not in LATENT_FIELDS]


def _fields(index: EpisodeIndex, arena: Arena, row: int, count: int) -> dict[str, Tensor]:
    """Return views of consecutive rows."""
    begins = torch.from_numpy(index.begins[row : row + count])
    return {name: arena.view_rows(name, row, count) for name in _names(arena)} | {BEGINS: begins}


def _load_records(
    tensors: Mapping[str, Tensor], env: int, start: int, stop: int, index: EpisodeIndex, arena: Arena
) -> None:
    """Copy the held records of [start, stop) into their rows."""
    first = max(start, int(index.records.head[env]))
    for at, count, row in index.records.spans(env, first, stop):
        for name, target in _fields(index, arena, row, count).items():
            target.copy_(tensors[name][at - start : at - start + count])
