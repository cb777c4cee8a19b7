"""Minari datasets in HDF5: `<dataset>/data/main_data.hdf5` and `metadata.json`.

By `minari/dataset/_storages/hdf5_storage.py` and `docs/content/dataset_standards.md` of Farama's Minari
(commit 1880118): a group `episode_<n>` for each episode, in it `observations` (an array, or a group of them)
with one row more than `actions`, `rewards`, `terminations` and `truncations`. Row t of these is the step
**from** observation t: the action chosen after seeing it, and the reward received on arriving at the next.
Images recorded as JPEG are not read. The spaces are JSON in `metadata.json` (`minari/serialization.py`).
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..buffers import EpisodeRecords
from ..utils.durable_io import open_regular, parse_json, write_json
from ..utils.errors import UserError
from ..utils.timestep import ActionSpec
from ..utils.units import count_text
from .episode import (
    EpisodeSpec,
    RawEpisode,
    check_size,
    check_total,
    choices_of,
    judging,
    read_description,
    several,
)

DATA_FILE, METADATA = "main_data.hdf5", "metadata.json"
_NAME = re.compile(r"episode_(\d{1,9})")
_NO_LETTER = re.compile(r"[^\w-]")  # what the name of a dataset cannot have
_FILTERS = {1, 2, 3, 32000}  # gzip, shuffle, fletcher32 and lzf; others are loaded as libraries
_NOT_PLAIN = "text or JPEG images, which lose detail; record the dataset with jpeg_encoding=False"
_ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations")
_SPACES = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
_VERSION = "0.5.3"  # of Minari, the oldest that has `jpeg_encoding`


def find(path: Path) -> Path | None:
    """Return the HDF5 file that a path means: the file itself, or that of a dataset's folder."""
    places = (path, path / DATA_FILE, path / "data" / DATA_FILE)
    files = (place for place in places if place.suffix in (".hdf5", ".h5") and os.path.isfile(place))
    return next(files, None)


def read_action(file: Path) -> ActionSpec | None:
    """Return the actions that the metadata describes, None without metadata."""
    space = _spaces(file).get("action_space")
    if space is None:
        return None
    with judging(file.with_name(METADATA)):
        if space["type"] == "Discrete":
            return ActionSpec(int(space["n"]), is_discrete=True)
        if space["type"] == "MultiDiscrete":
            return several([int(size) for size in space["nvec"]])
        if space["type"] != "Box":
            read = "Discrete, MultiDiscrete and Box"
            raise ValueError(f"its actions are a {space['type']}, and {read} are read")
        if not (size := int(np.prod(space["shape"], dtype=np.int64))):
            raise ValueError("its actions have no numbers")
        return ActionSpec(size, is_discrete=False)


def read(path: Path, skipped: Counter[str]) -> Iterator[tuple[Path, RawEpisode]]:
    """Yield the episodes in the order of their numbers; continuous actions are scaled to [-1, 1].

    Raises:
        UserError: If h5py is missing, or the file holds what no dataset has: links, data in other files,
            other filters, dtypes or shapes.
    """
    h5py, spaces = _h5py(), _spaces(path)
    with judging(path.with_name(METADATA)):
        _check_observations(spaces.get("observation_space"))
    with ExitStack() as opened:
        with judging(path):
            file = opened.enter_context(h5py.File(opened.enter_context(open_regular(path)), "r"))
            names = sorted((int(name[1]), name[0]) for key in file if (name := _NAME.fullmatch(key)))
        for _, name in names:
            with judging(path):
                group = _member(h5py, file, name)
                skipped.update(key for key in group if key not in _ARRAYS)
                episode = _read_episode(_Group(h5py, group), spaces)
            yield path, episode


class _Group:
    """A group whose arrays are read within bounds, summed over all of them."""

    def __init__(self, h5py: Any, group: Any) -> None:
        self._h5py, self._group, self._nbytes = h5py, group, 0

    def arrays(self, name: str, only: str) -> dict[str, Any]:
        """Return the datasets in the group `name`, or the one that it is under the name `only`, unread."""
        found = _member(self._h5py, self._group, name)
        if not isinstance(found, self._h5py.Group):
            return {only: self._checked(name, found)}
        if "_index_0" in found:  # Minari's name for the first part of a Tuple
            raise ValueError(f"`{name}` are a Tuple, and an array or a flat Dict of them is read")
        return {key: self._checked(key, _member(self._h5py, found, key)) for key in found}

    def read(self, name: str) -> NDArray:
        """Return one array."""
        found = _member(self._h5py, self._group, name)
        if isinstance(found, self._h5py.Group):
            raise ValueError(f"`{name}` is a group, as of a Tuple or Dict, and one array is read")
        return np.asarray(self._checked(name, found)[()])

    def _checked(self, name: str, dataset: Any) -> Any:
        if not isinstance(dataset, self._h5py.Dataset):
            raise ValueError(f"`{name}` is a group of groups, and arrays are read")
        created = dataset.id.get_create_plist()
        filters = {created.get_filter(index)[0] for index in range(created.get_nfilters())}
        if dataset.external or dataset.is_virtual or not filters <= _FILTERS:
            raise ValueError(f"`{name}` lies in other files, or behind filters other than gzip and lzf")
        if dataset.dtype == object:
            raise ValueError(f"`{name}` holds {_NOT_PLAIN}")
        self._nbytes += check_size(name, dataset.shape, dataset.dtype)
        check_total(self._nbytes)
        check_total(int(np.prod(dataset.chunks or (0,), dtype=object)) * dataset.dtype.itemsize)
        return dataset


def _member(h5py: Any, group: Any, name: str) -> Any:
    """Return a member of a group; a ValueError for a link to another place or file."""
    link = group.get(name, getlink=True)
    if link is None:
        raise ValueError(f"it has no `{name}`, but {', '.join(group)[:80] or 'nothing'}")
    if not isinstance(link, h5py.HardLink):
        raise ValueError(f"`{name}` is a link, and what it leads to is not read")
    return group[name]


def _check_observations(space: dict[str, Any] | None) -> None:
    """Raise ValueError if the metadata describes observations that are not plain arrays."""
    if space is None:
        return
    parts = space["subspaces"] if space["type"] == "Dict" else {"": space}
    for key, part in parts.items():
        if part["type"] not in _SPACES:
            what = f"observation `{key}` is a" if key else "observations are a"
            read = f"{', '.join(_SPACES)} and a flat Dict of them are read"
            raise ValueError(f"its {what} {part['type']}, and {read}")


def _read_episode(group: _Group, spaces: dict[str, Any]) -> RawEpisode:
    """Return one episode in the arrival convention."""
    rewards, truncations = group.read("rewards"), group.read("truncations").astype(np.bool_)
    terminations = group.read("terminations").astype(np.bool_)
    steps, ends = len(rewards), terminations | truncations
    if rewards.ndim != 1 or ends.shape != (steps,) or ends[:-1].any():
        found = f"rewards {rewards.shape} and ends {ends.shape}"
        raise ValueError(f"{found} need one number per step, and an end only at the last")
    observation, actions = {}, _scaled(group.read("actions"), spaces.get("action_space"))
    for key, dataset in group.arrays("observations", only="").items():
        space = spaces.get("observation_space") or {}
        space = space.get("subspaces", {}).get(key, {}) if key else space
        if dataset.ndim == 2 and len(space.get("shape", ())) == 3:
            raise ValueError(f"`{key or 'observations'}` holds {_NOT_PLAIN}")
        name = key or ("image" if dataset.ndim == 4 and dataset.dtype == np.uint8 else "vector")
        observation[name] = np.asarray(dataset[()])
    if len(actions) != steps:
        raise ValueError(f"it has {count_text(len(actions), 'action')} and {count_text(steps, 'reward')}")
    last = np.zeros((1, *actions.shape[1:]), actions.dtype)
    reward = np.concatenate([np.zeros(1, rewards.dtype), rewards])
    return RawEpisode(observation, np.concatenate([actions, last]), reward, bool(terminations[-1:].any()))


def _scaled(actions: NDArray, space: dict[str, Any] | None) -> NDArray:
    """Return choices from 0 on, and numbers of bounded dimensions in [-1, 1] (see `convert_action`)."""
    if actions.dtype.kind in "iu":
        return actions - (space or {}).get("start", 0)
    if space is None:
        raise ValueError(f"continuous actions need the bounds in {METADATA} next to it, and there are none")
    low, high = (np.asarray(space[end], np.float64).reshape(-1) for end in ("low", "high"))
    is_bounded = np.isfinite(low) & np.isfinite(high) & (low < high)
    if (~is_bounded | ((low == -1) & (high == 1))).all():
        return actions
    low, high = np.where(is_bounded, low, -1), np.where(is_bounded, high, 1)
    return (actions.reshape(len(actions), -1) - low) / (high - low) * 2 - 1


def write(folder: Path, episodes: Iterable[EpisodeRecords], spec: EpisodeSpec) -> int:
    """Write a dataset in one file, images as they are; return the number of its episodes.

    Its continuous actions are those of the model, in [-1, 1], as its space says.
    """
    h5py, count, steps = _h5py(), 0, 0
    (folder / "data").mkdir()
    with h5py.File(folder / "data" / DATA_FILE, "x", track_order=True) as file:
        for count, episode in enumerate(episodes, 1):
            taken = len(episode.reward) - 1
            actions = episode.action[:-1]
            ends = np.arange(taken) == taken - 1
            group = file.create_group(f"episode_{count - 1}")
            group.attrs.update({"id": count - 1, "total_steps": taken})
            arrays = {
                "actions": choices_of(actions, spec.action) if spec.action.is_discrete else actions,
                "rewards": episode.reward[1:],
                "terminations": ends & episode.is_terminal,
                "truncations": ends & (not episode.is_terminal),
                **{f"observations/{key}": values for key, values in episode.observation.items()},
            }
            for name, values in arrays.items():
                group.create_dataset(name, data=values, compression="gzip" if values.size else None)
            steps += taken
    box = {"type": "Box", "dtype": "float32", "shape": [spec.action.size]}
    box |= {"low": [-1.0] * spec.action.size, "high": [1.0] * spec.action.size}
    discrete = {"type": "Discrete", "dtype": "int64", "start": 0, "n": spec.action.size}
    if spec.action.parts:
        discrete = {"type": "MultiDiscrete", "dtype": "int64", "nvec": spec.action.parts}
    parts = {key: _box(part.shape, part.dtype) for key, part in spec.observation.items()}
    metadata = {
        "dataset_id": f"reverie/{_NO_LETTER.sub('_', folder.name)}-v0",
        "minari_version": _VERSION,
        "total_episodes": count,
        "total_steps": steps,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": json.dumps({"type": "Dict", "subspaces": parts}),
        "action_space": json.dumps(discrete if spec.action.is_discrete else box),
    }
    write_json(folder / "data" / METADATA, metadata)
    return count


def _box(shape: tuple[int, ...], dtype: np.dtype) -> dict[str, Any]:
    """Return the space of all values of a dtype."""
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    low, high = (limits.min, limits.max) if limits else (0, 1) if dtype.kind == "b" else (-np.inf, np.inf)
    ends = {"low": np.full(shape, low).tolist(), "high": np.full(shape, high).tolist()}
    return {"type": "Box", "dtype": str(dtype), "shape": list(shape), **ends}


def can_hold(key: str) -> bool:
    """Return whether an observation can have this name: a slash would make it a group."""
    return bool(key) and "/" not in key


def _spaces(file: Path) -> dict[str, Any]:
    """Return the spaces in the metadata next to a file, by their names there; {} without metadata."""
    path = file.with_name(METADATA)
    if not path.exists():
        return {}
    metadata = read_description(path)
    with judging(path):
        names = ("action_space", "observation_space")
        return {name: parse_json(metadata[name]) for name in names if name in metadata}


def _h5py() -> Any:
    """Return the library; a `UserError` if it is not installed."""
    try:
        import h5py
    except ImportError as error:
        raise UserError("Minari's files need h5py: pip install -c constraints.txt -e '.[minari]'.") from error
    return h5py
