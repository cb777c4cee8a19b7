"""Incremental saving and loading of records. The cost is proportional to the changes since the last save."""

import hashlib
import json
from collections import deque
from dataclasses import astuple, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..utils.durable_io import FileRecord, corrupt_file_error, read_json, reading, write_json
from ..utils.errors import UserError
from ..utils.units import count_text
from .compressed import RecordStore
from .episode_index import EpisodeIndex
from .fields import INDEX_FILE, OPEN_FILE
from .shared_files import (
    LatentFile,
    Segment,
    live_segments,
    load_latents,
    load_records,
    read_latents,
    read_records,
    write_latents,
    write_partial_chunks,
    write_segments,
)
from .storage import Arena


@dataclass(frozen=True, slots=True)
class SavedReplay:
    """A replay on disk: the files of one checkpoint, and the files that checkpoints share."""

    shared_folder: Path
    own: dict[str, FileRecord] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    latents: list[LatentFile] = field(default_factory=list)

    @property
    def shared(self) -> dict[str, FileRecord]:
        """Files in the shared folder by name."""
        return {item.file: item.record for item in (*self.segments, *self.latents)}


class ReplayFiles:
    """Saves and loads a buffer's records, using about 0.5 kB of host memory per file on disk."""

    def __init__(
        self, index: EpisodeIndex, store: RecordStore, latents: Arena | None, generator: np.random.Generator
    ) -> None:
        self._index, self._store, self._latents, self._generator = index, store, latents, generator
        rows = index.records.num_rows // index.start_every if latents is not None else 0
        self.changed = np.full(rows, False)
        """Whether each row of latents differs from the files on disk. Empty if latents are not stored."""

        self._last: SavedReplay | None = None

    def save(self, folder: Path, shared_folder: Path) -> SavedReplay:
        """Write new full chunks and changed latents to `shared_folder`, and the remainder to `folder`.

        All files are new and have been synced to disk on return. No file is deleted. Records count as saved
        only after `commit`, so failed or discarded saves have no effect.

        Raises:
            OSError: If the disk is full or fails.
        """
        index, store, shared_folder = self._index, self._store, shared_folder.resolve()
        last = self._last
        if last is None or last.shared_folder != shared_folder:
            last = SavedReplay(shared_folder)
        segments = live_segments(shared_folder, last.segments, index)
        segments += write_segments(shared_folder, segments, index, store)
        latents: list[LatentFile] = []
        if self._latents is not None:
            latents = write_latents(shared_folder, last.latents, index, self._latents, self.changed)
        state = {
            "fields": forms_of(store, self._latents),
            "latent_every": index.start_every,
            "chunk_length": index.records.chunk_length,
            "streams": index.state_dict(),
            "generator": self._generator.bit_generator.state,
            "segments": [astuple(segment) for segment in segments],
            "latents": [astuple(link) for link in latents],
        }
        own = {
            OPEN_FILE: write_partial_chunks(folder / OPEN_FILE, segments, index, store),
            INDEX_FILE: write_json(folder / INDEX_FILE, state),
        }
        return SavedReplay(shared_folder, own, segments, latents)

    def commit(self, saved: SavedReplay) -> None:
        """Make `saved` the base of the next save. Call this once it is on disk, before adding records."""
        self._last = saved
        self.changed[:] = False

    def load(self, folder: Path, shared_folder: Path) -> None:
        """Load a result of `save`. Chunk and window lengths may differ from the saved run's.

        At most one file's contents are in memory twice at any time. Open episodes stay open until a record
        with `is_first` is added.

        Raises:
            UserError: If the fields, the number of environments or the capacity does not match, or a file was
                not written by `save`. The current records are unchanged in this case.
        """
        path, index, store = folder / INDEX_FILE, self._index, self._store
        state = read_json(path)
        with reading(path):
            self._check(folder, state)
            (segments, latents), streams = shared_files_of(state), state["streams"]
            check_index(path, streams, segments, latents)
            generator = type(self._generator.bit_generator)()
            generator.state = state["generator"]
            length = state.get("chunk_length", 1)
            records = partial(
                read_records, shared_folder, folder / OPEN_FILE, segments, streams, length, store.fields
            )
            fields = self._latents.fields if self._latents is not None else {}
            latent_rows = partial(read_latents, shared_folder, latents, streams["tail"], fields)
            # This first pass checks all files before anything is changed.
            deque(chain(records(), latent_rows()), maxlen=0)
        index.load_state_dict(streams)
        store.clear()
        load_records(records(), index, store)
        if self._latents is not None:
            load_latents(latent_rows(), index, self._latents)
        index.rebuild_starts()
        self._generator.bit_generator.state = generator.state
        self.commit(SavedReplay(shared_folder.resolve(), {}, segments, latents))

    def content_hash(self) -> str:
        """Return the sha256 of the index, the generator and all records in stream order."""
        digest = hashlib.sha256()
        state = {"streams": self._index.state_dict(), "generator": self._generator.bit_generator.state}
        digest.update(json.dumps(state, sort_keys=True).encode())
        for _, _, count, row in self._index.records.held_spans():
            digest.update(self._index.begins[row : row + count].tobytes())
            tensors = self._store.records(row, count)
            if self._latents is not None:
                every = self._index.start_every
                first = -(-row // every)
                tensors |= self._latents.records(first, -(-(row + count) // every) - first)
            for values in tensors.values():
                digest.update(values.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _check(self, folder: Path, state: dict[str, Any]) -> None:
        """Check that the saved records are compatible with this buffer."""
        streams, index = state["streams"], self._index
        saved_envs, num_envs = len(streams["head"]), len(index.records.head)
        if saved_envs != num_envs:
            raise UserError(
                f"{folder} contains the replay of {count_text(saved_envs, 'environment')}, "
                f"but env.num_envs={num_envs}. "
                f"Set env.num_envs={saved_envs}."
            )
        total = sum(streams["tail"]) - sum(streams["head"])
        if total > index.capacity:
            raise UserError(
                f"{folder} contains {count_text(total, 'step')}, more than buffer.capacity={index.capacity}. "
                f"Raise buffer.capacity to {total}."
            )
        check_fields(folder, state, self._store, self._latents, index.start_every)


def shared_files_of(state: dict[str, Any]) -> tuple[list[Segment], list[LatentFile]]:
    """Return the shared files that a saved index lists."""
    segments = [Segment(*rest, record=FileRecord(*record)) for *rest, record in state["segments"]]
    latents = [LatentFile(*rest, record=FileRecord(*record)) for *rest, record in state["latents"]]
    return segments, latents


def forms_of(store: RecordStore, latents: Arena | None) -> dict[str, list[Any]]:
    """Return the dtype and shape of every field as JSON values."""
    fields = store.fields | (latents.fields if latents is not None else {})
    return {name: [str(spec.dtype).removeprefix("torch."), *spec.shape] for name, spec in fields.items()}


def check_fields(
    folder: Path, state: dict[str, Any], store: RecordStore, latents: Arena | None, start_every: int
) -> None:
    """Raise `UserError` unless the saved records have the same fields and all required latents."""
    saved, fields = state["fields"], forms_of(store, latents)
    if saved != fields:
        different = sorted(k for k in {*saved, *fields} if saved.get(k) != fields.get(k))
        changes = "; ".join(f"{k} was {saved.get(k)} and is {fields.get(k)}" for k in different)
        raise UserError(
            f"The fields in {folder} differ from this run's fields: {changes}. "
            "Resume with the env and buffer settings of the saved run."
        )
    every = state.get("latent_every", 1)
    if start_every % every:
        raise UserError(
            f"{folder} contains the latents of one record in {every}, but buffer.latent_every="
            f"{start_every}. Set buffer.latent_every={every} or a multiple of it."
        )


def check_index(
    path: Path, streams: dict[str, Any], segments: list[Segment], latents: list[LatentFile]
) -> None:
    """Raise `UserError` unless an index is consistent. Invalid numbers would corrupt memory."""
    head, tail, count = streams["head"], streams["tail"], len(streams["head"])
    numbers = [*head, *tail, *streams["num_complete"], *streams["episode_start"]]
    numbers += [number for s in segments for number in (s.env, s.start, s.stop)]
    numbers += [number for link in latents for number in (link.number, link.rows)]
    flags = [*streams["is_open"], *(link.is_base for link in latents)]
    files = [item.file for item in (*segments, *latents)]
    is_right = (
        all(len(values) == count for values in streams.values())
        and all(type(number) is int and 0 <= number < 2**62 for number in numbers)
        and all(type(flag) is bool for flag in flags)
        and all(type(file) is str and Path(file).name == file for file in files)
        and all(a <= b for a, b in zip(head, tail, strict=True))
        and all(start <= stop for start, stop in zip(streams["episode_start"], tail, strict=True))
        and all(s.env < count and s.start < s.stop <= tail[s.env] for s in segments)
        and _is_gapless(head, segments)
    )
    if not is_right:
        raise corrupt_file_error(path, "its numbers are inconsistent")


def _is_gapless(head: list[int], segments: list[Segment]) -> bool:
    """Return whether each environment's segments are contiguous, starting with its oldest record."""
    last = list(head)
    for segment in segments:
        if segment.start > last[segment.env] or segment.stop <= last[segment.env]:
            return False
        last[segment.env] = segment.stop
    return True
