"""Load a replay saved by several ranks into a different number of ranks, stream by stream."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ..utils.durable_io import read_json, reading
from ..utils.errors import UserError
from .compressed import RecordStore
from .episode_index import EpisodeIndex
from .fields import INDEX_FILE, OPEN_FILE
from .persistence import check_fields, check_index, shared_files_of
from .shared_files import LatentFile, Segment, load_latents, load_records, read_latents, read_records
from .storage import Arena

SavedPart = tuple[Path, Path]
"""Folder of a checkpoint, and folder of the files that checkpoints share."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The streams to load from one saved part."""

    folder: Path
    shared: Path
    state: dict[str, Any]
    segments: list[Segment]
    latents: list[LatentFile]

    streams: dict[int, int]
    """Maps stream numbers of the saved part to stream numbers of this rank."""


def load_streams(
    parts: Sequence[SavedPart], first: int, index: EpisodeIndex, store: RecordStore, latents: Arena | None
) -> None:
    """Fill all streams of `index` with consecutive saved streams, numbered across all parts.

    `first` is the first saved stream to load. The longest streams are cut if all exceed the capacity.

    Raises:
        UserError: If the fields do not match, or a file was not written by a buffer.
    """
    wanted = _wanted(parts, first, len(index.records.head))
    state: dict[str, list[Any]] = {key: [0] * len(index.records.head) for key in index.state_dict()}
    for part in wanted:
        check_fields(part.folder, part.state, store, latents, index.start_every)
        for key, values in state.items():
            for there, here in part.streams.items():
                values[here] = part.state["streams"][key][there]
    lengths = np.array(state["tail"]) - np.array(state["head"])
    kept = _leveled(lengths, index.capacity)
    state["head"] = [tail - int(length) for tail, length in zip(state["tail"], kept, strict=True)]
    index.load_state_dict(state)
    store.clear()
    for part in wanted:
        load_records(_records(part, store), index, store)
        if latents is not None:
            load_latents(_latents(part, latents), index, latents)
    index.count_episodes()
    index.rebuild_starts()


def _wanted(parts: Sequence[SavedPart], first: int, count: int) -> list[_Part]:
    """Return the parts that contain any of the requested streams."""
    found, before = [], 0
    for folder, shared in parts:
        path = folder / INDEX_FILE
        state = read_json(path)
        with reading(path):
            there = len(state["streams"]["head"])
            files = shared_files_of(state)
            check_index(path, state["streams"], *files)
        streams = {env: before + env - first for env in range(there) if 0 <= before + env - first < count}
        found += [_Part(folder, shared, state, *files, streams)] if streams else []
        before += there
    if before < first + count:
        raise UserError(f"{parts[0][0]} and its other parts have {before} streams, not {first + count}.")
    return found


def _records(part: _Part, store: RecordStore) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
    """Yield the results of `read_records` for the requested streams, with this rank's stream numbers."""
    length, streams = part.state.get("chunk_length", 1), part.state["streams"]
    read = partial(read_records, part.shared, part.folder / OPEN_FILE, part.segments)
    for env, start, fields in read(streams, length, store.fields):
        if env in part.streams:
            yield part.streams[env], start, fields


def _latents(part: _Part, latents: Arena) -> Iterator[dict[str, Tensor]]:
    """Yield the results of `read_latents` for the requested streams, with this rank's stream numbers."""
    tail = part.state["streams"]["tail"]
    for tensors in read_latents(part.shared, part.latents, tail, latents.fields):
        is_wanted = torch.isin(tensors["env"], torch.tensor([*part.streams]))
        own = {name: values[is_wanted] for name, values in tensors.items()}
        own["env"].apply_(part.streams.__getitem__)
        yield own


def _leveled(lengths: Int64[np.ndarray, "streams"], capacity: int) -> Int64[np.ndarray, "streams"]:
    """Return the lengths, cut to a common limit so that their sum is within the capacity.

    >>> _leveled(np.array([5, 1, 9]), 10)
    array([4, 1, 4])
    """
    limit = bisect_right(range(capacity + 1), capacity, key=lambda each: np.minimum(lengths, each).sum())
    return np.minimum(lengths, limit - 1)
