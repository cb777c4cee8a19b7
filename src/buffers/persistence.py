"""Saving and loading the held records, one chunk at a time."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from ..utils.errors import UserError
from .episodes import EpisodeIndex
from .storage import Arena

INDEX_FILE = "index.json"
BEGINS = "episode_begins"


def save_records(folder: Path, index: EpisodeIndex, arena: Arena, generator: np.random.Generator) -> None:
    """Write `index.json` and one .npy a field: the held records, environment after environment, oldest first.

    bfloat16, which NumPy does not know, is written as the int16 of the same bits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "fields": _fields(arena),
        "streams": index.state_dict(),
        "generator": generator.bit_generator.state,
    }
    (folder / INDEX_FILE).write_text(json.dumps(state))
    for name in arena.names:
        _write_npy(
            _file(folder, name), index, lambda row, count, name=name: _bits(arena.slab(name, row, count))
        )
    _write_npy(_file(folder, BEGINS), index, lambda row, count: index.begins[row : row + count])


def load_records(folder: Path, index: EpisodeIndex, arena: Arena, generator: np.random.Generator) -> None:
    """Read what `save_records` wrote; chunks may be of another length and windows too.

    Raises:
        UserError: If fields, number of environments or capacity do not fit; everything is then untouched.
    """
    state = json.loads((folder / INDEX_FILE).read_text())
    _check(folder, state, index, arena)
    index.load_state_dict(state["streams"])
    for name in arena.names:
        for row, count, values in _read_npy(_file(folder, name), index):
            arena.slab(name, row, count).copy_(torch.from_numpy(values).view(arena.dtype(name)))
    for row, count, values in _read_npy(_file(folder, BEGINS), index):
        index.begins[row : row + count] = values
    index.rebuild_starts()
    generator.bit_generator.state = state["generator"]


def _check(folder: Path, state: dict[str, Any], index: EpisodeIndex, arena: Arena) -> None:
    """Refuse records that do not fit."""
    streams = state["streams"]
    saved_envs, num_envs = len(streams["head"]), len(index.records.head)
    if saved_envs != num_envs:
        raise UserError(
            f"{folder} holds the replay of {saved_envs} environments, but env.num_envs={num_envs}. "
            f"Set env.num_envs={saved_envs}."
        )
    total = sum(streams["tail"]) - sum(streams["head"])
    if total > index.capacity:
        raise UserError(
            f"{folder} holds {total:,} steps, over buffer.capacity={index.capacity}. "
            f"Raise buffer.capacity to {total}."
        )
    if state["fields"] != (fields := _fields(arena)):
        different = sorted(k for k in {*state["fields"], *fields} if state["fields"].get(k) != fields.get(k))
        raise UserError(
            f"{folder} was saved with other fields than this run has: "
            + "; ".join(f"{k} was {state['fields'].get(k)} and is {fields.get(k)}" for k in different)
            + ". Resume with the env and buffer settings of the saved run."
        )


def _fields(arena: Arena) -> dict[str, list[Any]]:
    """Return dtype and shape of every field, as JSON knows them."""
    slabs = {name: arena.slab(name, 0, 1) for name in arena.names}
    return {name: [str(slab.dtype).removeprefix("torch."), *slab.shape[1:]] for name, slab in slabs.items()}


def _file(folder: Path, name: str) -> Path:
    """Return the file of a field; an observation key may hold any character."""
    return folder / f"{quote(name, safe='')}.npy"


def _bits(values: Tensor) -> np.ndarray:
    """Return a tensor as NumPy has it, bfloat16 as the int16 of the same bits."""
    values = values.cpu()
    return (values.view(torch.int16) if values.dtype is torch.bfloat16 else values).numpy()


def _pieces(index: EpisodeIndex) -> Iterator[tuple[int, int]]:
    """Yield (row, count) of everything held, in the order of the files."""
    records = index.records
    for env, (head, tail) in enumerate(zip(records.head.tolist(), records.tail.tolist(), strict=True)):
        for _, count, row in records.spans(env, head, tail):
            yield row, count


def _write_npy(path: Path, index: EpisodeIndex, read: Callable[[int, int], np.ndarray]) -> None:
    """Write one field, where `read(row, count)` gives consecutive rows."""
    empty = read(0, 0)
    header = {
        "descr": np.lib.format.dtype_to_descr(empty.dtype),
        "fortran_order": False,
        "shape": (index.total_steps, *empty.shape[1:]),
    }
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for row, count in _pieces(index):
            file.write(np.ascontiguousarray(read(row, count)).data)


def _read_npy(path: Path, index: EpisodeIndex) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield (row, count, values) of one field, values in memory of their own."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        (_, *shape), _, dtype = np.lib.format.read_array_header_1_0(file)
        for row, count in _pieces(index):
            values = np.fromfile(file, dtype, count * math.prod(shape))
            yield row, count, values.reshape(count, *shape)
