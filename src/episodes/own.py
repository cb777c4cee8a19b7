"""Reverie's episode format: a folder that dreamerv3-torch can also read, described by `episodes.json`.

Each episode is an npz file named `episode_000001-<records>.npz`. Row t of `action` is the action that **led
to** record t. Row 0 contains zeros. `episodes.json` is written last, so a folder that contains it is
complete.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from ..buffers import EpisodeRecords
from ..utils.durable_io import fsync_dir, write_json
from ..utils.timestep import ArraySpec
from ..utils.units import count_text
from .episode import DTYPES, STEP_KEYS, EpisodeSpec, RawEpisode, judging, read_description, several
from .npz import led_arrays, read_steps, write_npz

INDEX, VERSION = "episodes.json", 1


def read_index(path: Path) -> tuple[EpisodeSpec, list[Path]]:
    """Return the spec and the files of a folder of episodes. Raise `UserError` if they are invalid."""
    index, files = read_description(path / INDEX), sorted(path.glob("*.npz"))
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
        if (count := _whole(index["episodes"])) != len(files):
            raise ValueError(f"it lists {count_text(count, 'episode')}, but the folder has {len(files):,}")
        return EpisodeSpec(parts, replace(sizes, is_discrete=action["is_discrete"])), files


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
        write_npz(folder / f"episode_{count:06d}-{len(episode.reward)}.npz", led_arrays(episode))
    parts = spec.observation.items()
    index = {
        "version": VERSION,
        "observation": {key: {"shape": part.shape, "dtype": part.dtype.str} for key, part in parts},
        "action": asdict(spec.action),
        "episodes": count,
    }
    write_json(folder / INDEX, index)
    fsync_dir(folder)
    return count


def can_hold(key: str) -> bool:
    """Return whether the format allows this observation key."""
    return key not in STEP_KEYS


def _whole(number: object) -> int:
    """Return a non-negative integer. Raise `ValueError` for anything else."""
    if type(number) is not int or number < 0 or number > np.iinfo(np.int64).max:
        raise ValueError(f"{number!r} is not a valid size")
    return number
