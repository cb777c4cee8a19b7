"""Files shared by checkpoints: full chunks of records, and stored latents."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ..utils.durable_io import FileRecord, corrupt_file_error, read_tensors, reading, write_tensors
from .compressed import RecordStore, decode_saved
from .episode_index import EpisodeIndex
from .fields import LATENT_FIELDS, FieldSpec
from .storage import Arena

# Name of the field that marks the first records of episodes in a file.
BEGINS = "begins"

LATENT_FILE_BYTES = 16_000_000
"""Maximum bytes of latents per file. This limits the size of copies made while saving and loading."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Records [start, stop) of one environment, by stream index, in one file without latents.

    The records extend to the end of a chunk and never change, so all checkpoints that contain any of them
    share the file. Evicted records at the start of a chunk are included, so that resumed buffers encode the
    chunk identically.
    """

    env: int
    start: int
    stop: int
    file: str
    """Name in the shared folder."""

    record: FileRecord


@dataclass(frozen=True, slots=True)
class LatentFile:
    """A file containing some rows of latents: fields (rows, ...), and the `env` and `index` of each row.

    Each checkpoint appends the changed rows to a chain of files. Before the appended rows outnumber the
    stored records, a complete set starts a new chain. Therefore at most twice as many bytes are written as
    have changed, and a chain has at most twice as many rows as the capacity.
    """

    number: int
    """Position in the chain. Files are read in this order, and later files override earlier ones."""

    rows: int

    is_base: bool
    """Whether the file belongs to the complete set that starts the chain."""

    file: str
    """Name in the shared folder."""

    record: FileRecord


def live_segments(folder: Path, segments: list[Segment], index: EpisodeIndex) -> list[Segment]:
    """Return the segments that have stored records and an intact file. The other files are rewritten."""
    head = index.records.head.tolist()
    found, last = [], list(head)
    # Segments are sorted from oldest to newest. All segments after a gap are rewritten.
    for segment in segments:
        is_held = head[segment.env] < segment.stop and segment.start <= last[segment.env]
        if is_held and _has_size(folder / segment.file, segment.record):
            found.append(segment)
            last[segment.env] = segment.stop
    return found


def write_segments(
    folder: Path, segments: list[Segment], index: EpisodeIndex, store: RecordStore
) -> Iterator[Segment]:
    """Write the full chunks that are not in `segments` to one file each, and yield their segments."""
    length = index.records.chunk_length
    for env, (start, tail) in enumerate(_unwritten(segments, index.state_dict(), length)):
        for first, count, row in index.records.spans(env, start, tail // length * length):
            path = _new_path(folder, f"env{env:03d}_record{first:09d}")
            record = write_tensors(path, store.saved(row, count) | _begins(index, row, count))
            yield Segment(env, first, first + count, path.name, record)


def write_partial_chunks(
    path: Path, segments: list[Segment], index: EpisodeIndex, store: RecordStore
) -> FileRecord:
    """Write the records outside all segments: less than one chunk per environment."""
    tensors: dict[str, Tensor] = {}
    length = index.records.chunk_length
    for env, (start, tail) in enumerate(_unwritten(segments, index.state_dict(), length)):
        for _, count, row in index.records.spans(env, start, tail):
            fields = store.saved(row, count) | _begins(index, row, count)
            tensors |= {f"{env}/{name}": values for name, values in fields.items()}
    return write_tensors(path, tensors)


def read_records(
    folder: Path,
    open_path: Path,
    segments: list[Segment],
    streams: Mapping[str, Any],
    chunk_length: int,
    fields: Mapping[str, FieldSpec],
) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
    """Yield the environment, first stream index and fields of all saved records.

    `streams` is the state of the saved index, and `chunk_length` is the saved run's. Only one decoded file at
    a time is in memory.

    Raises:
        UserError: If a file's fields differ from `fields`. The message names the first such file.
    """
    for segment in segments:
        path, count = folder / segment.file, segment.stop - segment.start
        yield segment.env, segment.start, _read_fields(path, read_tensors(path), fields, count)
    by_env: dict[str, dict[str, Tensor]] = {}
    for key, values in read_tensors(open_path).items():
        env, _, name = key.partition("/")
        by_env.setdefault(env, {})[name] = values
    for env, (start, tail) in enumerate(_unwritten(segments, streams, chunk_length)):
        if start < tail:
            tensors = _read_fields(open_path, by_env.pop(str(env), {}), fields, tail - start)
            yield env, start, tensors
    if by_env:
        raise corrupt_file_error(open_path, f"it contains records of unknown environments {sorted(by_env)}")


def load_records(
    saved: Iterable[tuple[int, int, dict[str, Tensor]]], index: EpisodeIndex, store: RecordStore
) -> None:
    """Fill `store` and `begins` with the results of `read_records`, in the chunks of `index`."""
    length = index.records.chunk_length
    for env, start, tensors in saved:
        first = max(start, int(index.records.head[env]) // length * length)
        begins = tensors.pop(BEGINS)
        for at, count, row in index.records.spans(env, first, start + len(begins)):
            piece = slice(at - start, at - start + count)
            rows = store.to_index_tensor(np.arange(row, row + count))
            store.write(rows, {name: values[piece] for name, values in tensors.items()})
            index.begins[row : row + count] = begins[piece].numpy()


def write_latents(
    folder: Path,
    chain: list[LatentFile],
    index: EpisodeIndex,
    latents: Arena,
    changed: Bool[np.ndarray, "rows"],
) -> list[LatentFile]:
    """Write the changed latents, or all latents if the chain would become too long. Return the new chain."""
    every = index.start_every
    spans = [
        (-(-row // every), -(-(row + count) // every)) for _, _, count, row in index.records.held_spans()
    ]
    added = sum(int(changed[first:stop].sum()) for first, stop in spans)
    added += sum(link.rows for link in chain if not link.is_base)
    number = chain[-1].number + 1 if chain else 1
    is_damaged = not all(_has_size(folder / link.file, link.record) for link in chain)
    chosen = changed
    if not chain or is_damaged or added >= sum(stop - first for first, stop in spans):
        chain, chosen = [], None
    row_bytes = sum(spec.nbytes for spec in latents.fields.values())
    written: list[LatentFile] = []
    for env, position, rows in _batches(index, chosen, max(1, LATENT_FILE_BYTES // row_bytes)):
        path = _new_path(folder, f"latents_{number:09d}")
        tensors = {name: latents.empty(name, (len(rows),)) for name in LATENT_FIELDS}
        latents.read(latents.to_index_tensor(rows), tensors)
        tensors |= {"env": torch.from_numpy(env), "index": torch.from_numpy(position)}
        record = write_tensors(path, tensors)
        # Free this batch before copying the next one.
        del tensors
        written.append(LatentFile(number, len(rows), not chain, path.name, record))
        number += 1
    return [*chain, *written]


def read_latents(
    folder: Path, chain: list[LatentFile], tail: Sequence[int], fields: Mapping[str, FieldSpec]
) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of each file. `tail` is the end of each stream.

    Raises:
        UserError: If a file has unexpected contents. The message names the first such file.
    """
    for link in chain:
        path, owner = folder / link.file, FieldSpec((link.rows,), torch.int64)
        tensors = read_tensors(path)
        expected = {name: spec.of(link.rows) for name, spec in fields.items()}
        _check_forms(path, tensors, expected | {"env": owner, "index": owner})
        env, position = tensors["env"].numpy(), tensors["index"].numpy()
        is_known = (env >= 0) & (env < len(tail)) & (position >= 0)
        if not is_known.all() or not (position < np.array(tail)[env]).all():
            raise corrupt_file_error(path, "it contains latents of records that were never added")
        yield tensors


def load_latents(saved: Iterable[dict[str, Tensor]], index: EpisodeIndex, latents: Arena) -> None:
    """Fill `latents` with the saved latents of stored records. Records without a latent are skipped."""
    every = index.start_every
    for tensors in saved:
        env, position = tensors["env"].numpy(), tensors["index"].numpy()
        held = np.flatnonzero((position >= index.records.head[env]) & (position % every == 0))
        rows = index.records.rows(env[held], position[held]) // every
        chosen = torch.from_numpy(held)
        latents.write(latents.to_index_tensor(rows), {name: tensors[name][chosen] for name in LATENT_FIELDS})


def _read_fields(
    path: Path, tensors: dict[str, Tensor], fields: Mapping[str, FieldSpec], count: int
) -> dict[str, Tensor]:
    """Return the fields of `count` saved records, encoded or not, including `BEGINS`."""
    with reading(path):
        found = decode_saved(tensors, fields, count)
    expected = {name: spec.of(count) for name, spec in fields.items()}
    _check_forms(path, found, expected | {BEGINS: FieldSpec((count,), torch.bool)})
    return found


def _check_forms(path: Path, tensors: Mapping[str, Tensor], expected: Mapping[str, FieldSpec]) -> None:
    """Raise `UserError` unless the names, shapes and dtypes of a file's tensors match `expected`."""
    found = {name: FieldSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    for name in sorted(found.keys() | expected.keys()):
        has, needs = found.get(name), expected.get(name)
        if has != needs:
            raise corrupt_file_error(path, f"{name} is {has or 'missing'} instead of {needs or 'missing'}")


def _has_size(path: Path, record: FileRecord) -> bool:
    """Return whether a file exists and has its recorded size."""
    try:
        return path.stat().st_size == record.nbytes
    except OSError:
        return False


def _new_path(folder: Path, name: str) -> Path:
    """Return an unused path. Existing files may belong to a checkpoint."""
    path, number = folder / f"{name}.safetensors", 2
    while path.exists():
        path, number = folder / f"{name}_{number}.safetensors", number + 1
    return path


def _unwritten(segments: list[Segment], streams: Mapping[str, Any], length: int) -> list[tuple[int, int]]:
    """Return (start, tail) of each environment's records outside all segments, aligned to chunk starts."""
    ends = zip(streams["head"], streams["tail"], strict=True)
    start = [head // length * length if head < tail else tail for head, tail in ends]
    for segment in segments:
        start[segment.env] = max(start[segment.env], segment.stop)
    return list(zip(start, streams["tail"], strict=True))


def _begins(index: EpisodeIndex, row: int, count: int) -> dict[str, Tensor]:
    """Return a view of the flags that mark the first records of episodes, for consecutive rows."""
    return {BEGINS: torch.from_numpy(index.begins[row : row + count])}


def _batches(
    index: EpisodeIndex, chosen: Bool[np.ndarray, "rows"] | None, size: int
) -> Iterator[Int64[np.ndarray, "3 batch"]]:
    """Yield environment, stream index and row of the `chosen` latents (default: all), `size` at a time."""
    waiting, every = np.empty((3, 0), np.int64), index.start_every
    for env, first, count, row in index.records.held_spans():
        rows = np.arange(-(-row // every), -(-(row + count) // every))
        rows = rows if chosen is None else rows[chosen[rows]]
        owners = np.full(len(rows), env), first + rows * every - row, rows
        waiting = np.concatenate([waiting, owners], axis=1)
        while waiting.shape[1] >= size:
            yield waiting[:, :size]
            waiting = waiting[:, size:]
    if waiting.size:
        yield waiting
