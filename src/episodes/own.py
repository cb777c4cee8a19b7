"""Reverie's episode format: a folder that dreamerv3-torch can also read, described by `episodes.json`.

Each episode is an npz file named `episode_000001-<records>.npz`. Row t of `action` is the action that **led
to** record t. Row 0 contains zeros. `episodes.json` is written last, so a folder that contains it is
complete. `append` writes an episode before it updates the index, so a kill may leave one unlisted file.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from ..buffers import EpisodeRecords
from ..utils.durable_io import UNFINISHED, fsync_dir, replace_file, write_json
from ..utils.errors import UserError
from ..utils.timestep import ArraySpec
from ..utils.units import count_text
from .episode import (
    DTYPES,
    STEP_KEYS,
    EpisodeSpec,
    RawEpisode,
    difference,
    judging,
    read_description,
    several,
)
from .npz import led_arrays, read_steps, write_npz

INDEX, VERSION = "episodes.json", 1
_LOCK_FILE = ".lock"


def read_index(path: Path) -> tuple[EpisodeSpec, list[Path]]:
    """Return the spec and the files of a folder of episodes. Raise `UserError` if they are invalid."""
    index, files = read_description(path / INDEX), set(path.glob("*.npz"))
    with judging(path / INDEX):
        if index["version"] != VERSION:
            raise ValueError(f"it has version {index['version']}, but only version {VERSION} is supported")
        parts = {
            str(key): ArraySpec(tuple(map(_whole, part["shape"])), DTYPES[part["dtype"]])
            for key, part in index["observation"].items()
        }
        action = index["action"]
        if type(action["is_discrete"]) is not bool:
            raise ValueError("its action is invalid")
        sizes = several(map(_whole, action.get("parts") or [action["size"]]))
        count = _whole(index["episodes"])
        listed = sorted(files.difference(_next_files(path, count)))
        if count != len(listed):
            raise ValueError(f"it lists {count_text(count, 'episode')}, but the folder has {len(files):,}")
        return EpisodeSpec(parts, replace(sizes, is_discrete=action["is_discrete"])), listed


def read(path: Path, skipped: Counter[str]) -> Iterator[tuple[Path, RawEpisode]]:
    """Yield the episodes and their files in the order in which they were written."""
    spec, files = read_index(path)
    for file in files:
        arrays = read_steps(file, {*spec.observation, *STEP_KEYS}.__contains__, skipped, spec.observation)
        with judging(file):
            is_first, is_terminal, led = arrays["is_first"], arrays["is_terminal"], arrays["action"]
            if is_first[:1].tolist() != [True] or is_first[1:].any() or is_terminal[:-1].any():
                raise ValueError("it is not a single complete episode")
            chosen = np.concatenate([led[1:], np.zeros_like(led[:1])])
            observation = {key: arrays[key] for key in spec.observation}
            yield file, RawEpisode(observation, chosen, arrays["reward"], bool(is_terminal[-1]))


def write(folder: Path, episodes: Iterable[EpisodeRecords], spec: EpisodeSpec) -> int:
    """Write episodes with a common spec. Return their number."""
    count = 0
    for count, episode in enumerate(episodes, 1):
        _write_episode(folder, count, episode)
    write_json(folder / INDEX, _index(spec, count))
    fsync_dir(folder)
    return count


def append(folder: Path, episode: EpisodeRecords, spec: EpisodeSpec) -> Path:
    """Add an episode to a folder, which is created if it is missing or empty. Return the episode's file.

    The episode is in the folder completely or not at all, even after a kill. Processes wait for each other.

    Raises:
        UserError: If the folder has other files, or episodes with another spec.
        OSError: If the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / _LOCK_FILE):
        if (folder / INDEX).exists():
            stored, files = read_index(folder)
            if differs := difference(spec.observation, stored.observation):
                raise UserError(f"{folder} contains other episodes: {differs}. Choose another folder.")
            if spec.action != stored.action:
                found = f"its actions are {stored.action.text}, not {spec.action.text}"
                raise UserError(f"{folder} contains other episodes: {found}. Choose another folder.")
        elif others := {path.name for path in folder.iterdir() if path.suffix != UNFINISHED} - {_LOCK_FILE}:
            raise UserError(f"{folder} has {min(others)}, but no {INDEX}. Choose a new folder.")
        else:
            files = []
            _replace_index(folder, spec, 0)
        for unlisted in _next_files(folder, len(files)):
            unlisted.unlink()
        file = _write_episode(folder, len(files) + 1, episode)
        fsync_dir(folder)
        _replace_index(folder, spec, len(files) + 1)
    return file


def _write_episode(folder: Path, number: int, episode: EpisodeRecords) -> Path:
    file = folder / f"episode_{number:06d}-{len(episode.reward)}.npz"
    write_npz(file, led_arrays(episode))
    return file


def _next_files(folder: Path, count: int) -> list[Path]:
    """Return what a killed `append` may have left in a folder of `count` episodes."""
    return list(folder.glob(f"episode_{count + 1:06d}-*.npz"))


def _replace_index(folder: Path, spec: EpisodeSpec, count: int) -> None:
    replace_file(folder / INDEX, [json.dumps(_index(spec, count)).encode()])


def _index(spec: EpisodeSpec, count: int) -> dict[str, Any]:
    parts = spec.observation.items()
    return {
        "version": VERSION,
        "observation": {key: {"shape": part.shape, "dtype": part.dtype.str} for key, part in parts},
        "action": asdict(spec.action),
        "episodes": count,
    }


def can_hold(key: str) -> bool:
    """Return whether the format allows this observation key."""
    return key not in STEP_KEYS


def _whole(number: object) -> int:
    """Return a non-negative integer. Raise `ValueError` for anything else."""
    if type(number) is not int or number < 0 or number > np.iinfo(np.int64).max:
        raise ValueError(f"{number!r} is not a valid size")
    return number
