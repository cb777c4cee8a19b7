"""Raw episodes from files, checks for them, and the common spec of a set of episodes."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ..buffers import EpisodeRecords
from ..envs.spaces import action_bounds, choices
from ..utils.durable_io import open_regular, parse_json, reading
from ..utils.timestep import ActionSpec, ArraySpec
from ..utils.units import count_text

MOST_BYTES = 2**31
"""Maximum bytes of all arrays in an episode or in a file of episodes. 27,000 Atari steps use 0.33e9 bytes."""

MOST_CHOICES = 100_000
"""Maximum number of discrete actions."""

MOST_AXES = 6
# Bounds for individual pixels occupy about 1e6 bytes as text.
_DESCRIPTION_BYTES = 2**24
_KINDS = "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64".split()
DTYPES = {np.dtype(name).str: np.dtype(name) for name in _KINDS}
"""Supported dtypes by their descriptions in files: plain little-endian numbers."""

_REPAIR = "Remove it, or write it again with the program that created it."
judging = partial(reading, problem="is invalid", repair=_REPAIR)
"""Convert errors caused by another program's file to `UserError`. See `reading`."""

UNFINISHED = "records of unfinished episodes"
"""Key under which readers count the records of episodes that lack a beginning or an end."""

STEP_KEYS = ("action", "reward", "is_first", "is_last", "is_terminal")


class RawEpisode(NamedTuple):
    """A complete episode in the arrival convention of `utils/timestep.py`, with unconverted actions."""

    observation: dict[str, NDArray]
    """Observations (records, ...) by key."""

    action: NDArray
    """Actions chosen after each record: integers (records,) or (records, size). The last action is unused."""

    reward: NDArray
    """Rewards (records,) received on arriving at each record."""

    is_terminal: bool


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Observations and actions of all episodes in a set."""

    observation: dict[str, ArraySpec]
    action: ActionSpec


def read_description(path: Path) -> Any:
    """Return the contents of a JSON file of at most 16 MiB. See `judging` for errors."""
    with judging(path), open_regular(path, _DESCRIPTION_BYTES) as file:
        return parse_json(file.read())


def check_size(name: str, shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Return the size in bytes of an array that a file describes, before it is allocated.

    Raises:
        ValueError: If the dtype is not in `DTYPES`, or the shape has a negative size or too many axes.
    """
    if dtype.str not in DTYPES:
        raise ValueError(f"`{name}` has the dtype {dtype}, but only {', '.join(_KINDS)} are supported")
    if len(shape) > MOST_AXES or min(shape, default=0) < 0:
        raise ValueError(f"`{name}` has the shape {shape}, but at most {MOST_AXES} sizes >= 0 are allowed")
    return math.prod(shape) * dtype.itemsize


def check_total(nbytes: int) -> None:
    """Raise `ValueError` if the total size of arrays exceeds `MOST_BYTES`."""
    if nbytes > MOST_BYTES:
        raise ValueError(f"its arrays occupy {nbytes:,} bytes, but at most {MOST_BYTES:,} are allowed")


def to_records(raw: RawEpisode, action: ActionSpec) -> EpisodeRecords:
    """Convert an episode for the replay buffer: float32 rewards and actions, one-hot if discrete.

    Raises:
        ValueError: If the lengths differ, a number is not finite, or an action does not match `action`.
    """
    length = raw.reward.size
    if not length or raw.reward.ndim != 1 or not raw.observation:
        raise ValueError("an episode must have records with one reward and at least one observation each")
    for name, values in {**raw.observation, "action": raw.action}.items():
        if values.shape[:1] != (length,):
            raise ValueError(
                f"it has {count_text(length, 'reward')}, but `{name}` has the shape {values.shape}"
            )
    # Overflows produce non-finite numbers. They are detected below.
    with np.errstate(over="ignore"):
        reward = raw.reward.astype(np.float32)
        actions = _actions(raw.action, action, length - 1)
    for name, values in {**raw.observation, "reward": reward, "action": actions}.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ValueError(f"`{name}` has numbers that are not finite")
    if reward[0] != 0:
        raise ValueError(f"its first reward is {reward[0]:g}, but no action precedes the first record")
    return EpisodeRecords(raw.observation, actions, reward, bool(raw.is_terminal))


def model_actions(space: spaces.Space, actions: NDArray) -> NDArray:
    """Convert the actions of an episode, (steps, *shape), to the model's format. Invert `convert_action`.

    Returns:
        Choices counted from 0, (steps,) or (steps, parts), or float64 numbers (steps, size). Numbers are in
        [-1, 1] if the actions are within the bounds of `space`.

    Raises:
        ValueError: If an action has another shape than `space`.
    """
    if actions.shape[1:] != space.shape:
        raise ValueError(f"one action has the shape {actions.shape[1:]}, but {space} has {space.shape}")
    flat = actions.reshape(len(actions), -1)
    if parts := choices(space):
        result = flat - np.reshape(getattr(space, "start", 0), -1)
        return result if len(parts) > 1 else result[:, 0]
    assert isinstance(space, spaces.Box)
    _, _, least, most = action_bounds(space)
    # A dimension with a single value has no scale.
    half = np.where(most > least, most / 2 - least / 2, 1)
    return (flat - (most / 2 + least / 2)) / half


def _actions(values: NDArray, action: ActionSpec, taken: int) -> NDArray[np.float32]:
    """Return the first `taken` actions as rows of `action.size` numbers, followed by a row of zeros."""
    result = np.zeros((len(values), action.size), np.float32)
    blocks = action.parts or (action.size,)
    shape = (len(blocks),) if action.parts else ()
    if values.dtype.kind in "iu" and values.shape[1:] == shape and action.is_discrete:
        begin = 0
        for size, chosen in zip(blocks, values[:taken].reshape(taken, len(blocks)).T, strict=True):
            if taken and not 0 <= int(chosen.min()) <= int(chosen.max()) < size:
                choices = count_text(size, "choice")
                raise ValueError(f"its actions go up to {chosen.max()}, but there are only {choices}")
            result[np.arange(taken), begin + chosen.astype(np.int64)] = 1
            begin += size
        return result
    if values.dtype.kind != "f" or values[:1].size != action.size:
        raise ValueError(f"its actions are {values.dtype} {values.shape[1:]}, not {action.text}")
    result[:taken] = values.reshape(len(values), -1)[:taken]
    if action.is_discrete and not is_one_hot(result[:taken], blocks):
        raise ValueError(f"its actions are not one-hot vectors, {action.text}")
    return result


def is_one_hot(rows: NDArray, blocks: tuple[int, ...]) -> bool:
    """Return whether each block of each row is one-hot."""
    sums = np.add.reduceat(rows, np.cumsum((0, *blocks[:-1])), axis=1)
    return bool(((rows == 0) | (rows == 1)).all() and (sums == 1).all())


def several(sizes: Iterable[int]) -> ActionSpec:
    """Return the spec of discrete choices. Raise `ValueError` if one is empty, or there are too many."""
    parts = tuple(sizes)
    if min(parts, default=0) < 1 or sum(parts) > MOST_CHOICES:
        raise ValueError("its action is invalid")
    return ActionSpec(sum(parts), True, parts if len(parts) > 1 else ())


def spec_of(records: EpisodeRecords, action: ActionSpec) -> EpisodeSpec:
    """Return the common spec of a set of episodes from one of them."""
    parts = {key: ArraySpec(values.shape[1:], values.dtype) for key, values in records.observation.items()}
    return EpisodeSpec(parts, action)


def difference(found: Mapping[str, ArraySpec], needed: Mapping[str, ArraySpec]) -> str | None:
    """Return e.g. "observation `image` is uint8 (96, 96, 3) instead of uint8 (64, 64, 3)", or `None`."""
    for key in sorted(found.keys() | needed.keys()):
        if (is_now := found.get(key)) != (wanted := needed.get(key)):
            texts = [f"{part.dtype} {part.shape}" if part else "missing" for part in (is_now, wanted)]
            return f"observation `{key}` is {texts[0]} instead of {texts[1]}"
    return None
