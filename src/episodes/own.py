"""Reverie's own episodes: a folder that dreamerv3-torch reads too, with `episodes.json`, its description.

The files are those of `dreamerv3_torch.py` with our dtypes, `is_last` and no other keys. `episodes.json` is
written last, so a folder that has it is whole.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ..buffers import EpisodeRecords
from ..utils.durable_io import fsync_dir, write_json
from ..utils.timestep import ActionSpec, ArraySpec
from ..utils.units import count_text
from .dreamerv3_torch import file_name, led_arrays, read_file
from .episode import DTYPES, STEP_KEYS, EpisodeSpec, RawEpisode, judging, read_description, several
from .npz import write_npz

INDEX, VERSION = "episodes.json", 1


def read_spec(path: Path) -> EpisodeSpec:
    """Return what a folder says of its episodes; a `UserError` if it says nothing that can be used."""
    index = read_description(path / INDEX)
    with judging(path / INDEX):
        if index["version"] != VERSION:
            raise ValueError(f"it has version {index['version']}, and version {VERSION} is read")
        parts = {
            str(key): ArraySpec(tuple(map(_whole, part["shape"])), DTYPES[part["dtype"]])
            for key, part in index["observation"].items()
        }
        size, is_discrete = index["action"]["size"], index["action"]["is_discrete"]
        if type(is_discrete) is not bool or _whole(size) < 1:
            raise ValueError("its action is none")
        if not (several_at_once := index["action"].get("parts")):
            return EpisodeSpec(parts, ActionSpec(size, is_discrete))
        return EpisodeSpec(parts, several(map(_whole, several_at_once)))


def read(path: Path, skipped: Counter[str]) -> Iterator[tuple[Path, RawEpisode]]:
    """Yield the episodes in the order in which they were written, with their files."""
    spec, files = read_spec(path), sorted(path.glob("*.npz"))
    with judging(path / INDEX):
        if (count := _whole(read_description(path / INDEX)["episodes"])) != len(files):
            raise ValueError(f"it lists {count_text(count, 'episode')}, and the folder has {len(files):,}")
    for file in files:
        yield file, read_file(file, skipped, spec.observation)


def write(folder: Path, episodes: Iterable[EpisodeRecords], spec: EpisodeSpec) -> int:
    """Write episodes of one spec; return their number."""
    count = 0
    for count, episode in enumerate(episodes, 1):
        write_npz(folder / file_name(count, episode), led_arrays(episode))
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
    """Return whether an observation can have this name."""
    return key not in STEP_KEYS


def _whole(number: object) -> int:
    """Return a whole number of 0 or more; a ValueError for all else."""
    if type(number) is not int or number < 0 or number > np.iinfo(np.int64).max:
        raise ValueError(f"{number!r} is no size")
    return number
