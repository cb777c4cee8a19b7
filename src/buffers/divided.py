"""A replay that several ranks have saved in parts, given out to another number of them by whole streams."""

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
from .episode_index import EpisodeIndex
from .persistence import INDEX_FILE, OPEN_FILE, check_fields, check_index, shared_files_of
from .shared_files import LatentFile, Segment, load_latents, load_records, read_latents, read_records
from .storage import Arena, RecordStore

SavedPart = tuple[Path, Path]
"""The folder of a checkpoint, and the folder of the files that checkpoints share."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What is wanted of one saved part."""

    folder: Path
    shared: Path
    state: dict[str, Any]
    segments: list[Segment]
    latents: list[LatentFile]

    streams: dict[int, int]
    """Number of a stream here, by its number there."""


def load_streams(
    parts: Sequence[SavedPart], first: int, index: EpisodeIndex, store: RecordStore, latents: Arena | None
) -> None:
    """Load as many streams as `index` has, from number `first` on, counted over all parts in their order.

    Where they hold more records than the capacity, the longest streams lose their oldest ones.

    Raises:
        UserError: If fields do not fit, or a file was not written by a buffer.
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
    """Return the parts that hold some of the wanted streams."""
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
        raise UserError(f"{parts[0][0]} and its other parts hold {before} streams, not {first + count}.")
    return found


def _records(part: _Part, store: RecordStore) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
    """Yield what `read_records` does, of wanted streams by their numbers here."""
    length, streams = part.state.get("chunk_length", 1), part.state["streams"]
    read = partial(read_records, part.shared, part.folder / OPEN_FILE, part.segments)
    for env, start, fields in read(streams, length, store.fields):
        if env in part.streams:
            yield part.streams[env], start, fields


def _latents(part: _Part, latents: Arena) -> Iterator[dict[str, Tensor]]:
    """Yield what `read_latents` does, of wanted streams by their numbers here."""
    tail = part.state["streams"]["tail"]
    for tensors in read_latents(part.shared, part.latents, tail, latents.fields):
        is_wanted = torch.isin(tensors["env"], torch.tensor([*part.streams]))
        own = {name: values[is_wanted] for name, values in tensors.items()}
        own["env"].apply_(part.streams.__getitem__)
        yield own


def _leveled(lengths: Int64[np.ndarray, "streams"], capacity: int) -> Int64[np.ndarray, "streams"]:
    """Return the lengths, the longest cut to one limit so that their sum is within the capacity.

    >>> _leveled(np.array([5, 1, 9]), 10)
    array([4, 1, 4])
    """
    limit = bisect_right(range(capacity + 1), capacity, key=lambda each: np.minimum(lengths, each).sum())
    return np.minimum(lengths, limit - 1)
