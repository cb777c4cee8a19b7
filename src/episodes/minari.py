"""Minari datasets in HDF5: `<dataset>/data/main_data.hdf5` and `metadata.json`.

By `minari/dataset/_storages/hdf5_storage.py` and `docs/content/dataset_standards.md` of Farama's Minari
(commit 1880118): a group `episode_<n>` for each episode, in it `observations` (an array, or a group of them)
with one row more than `actions`, `rewards`, `terminations` and `truncations`. Row t of these is the step
**from** observation t: the action chosen after seeing it, and the reward received on arriving at the next.
Images recorded as JPEG are not read. The spaces are JSON in `metadata.json` (`minari/serialization.py`).

Minari's library is not used. It imports and calls what `env_spec` in the metadata names if a space is
missing, follows links to other files, and reads arrays of any size; what it writes is not compressed.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..buffers import EpisodeRecords
from ..utils.durable_io import open_regular, parse_json, write_json
from ..utils.errors import UserError
from ..utils.timestep import ActionSpec, ArraySpec
from .episode import EpisodeSpec, RawEpisode, check_size, check_total, judging, read_description, several

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
    space, _ = _spaces(file)
    if space is None:
        return None
    with judging(file.with_name(METADATA)):
        kind = space["type"]
        if kind in ("Discrete", "MultiDiscrete"):
            return several(int(size) for size in (space["nvec"] if kind == "MultiDiscrete" else [space["n"]]))
        if kind != "Box":
            raise ValueError(f"its actions are a {kind}, and Discrete, MultiDiscrete and Box are read")
        if not (size := int(np.prod(space["shape"], dtype=np.int64))):
            raise ValueError("its actions have no numbers")
        return ActionSpec(size, is_discrete=False)


def read(path: Path, skipped: Counter[str]) -> Iterator[tuple[Path, RawEpisode]]:
    """Yield the episodes in the order of their numbers; continuous actions are scaled to [-1, 1].

    Raises:
        UserError: If h5py is missing, or the file holds what no dataset has: links, data in other files,
            other filters, dtypes or shapes.
    """
    h5py, (space, parts) = _h5py(), _spaces(path)
    with judging(path), open_regular(path) as opened, h5py.File(opened, "r") as file:
        for _, name in sorted((int(name[1]), name[0]) for key in file if (name := _NAME.fullmatch(key))):
            group = _member(h5py, file, name)
            skipped.update(group.keys() - _ARRAYS)
            yield path, _read_episode(_arrays(h5py, group), parts, space)


def _arrays(h5py: Any, episode: Any) -> dict[str, Any]:
    """Return the datasets of an episode, unread, by name: `observations/<key>` for the parts of a Dict.

    Raises:
        ValueError: If one is missing, no dataset of plain numbers in this file, or all are too large.
    """
    found: dict[str, Any] = {}
    nbytes = 0
    for name in _ARRAYS:
        member = _member(h5py, episode, name)
        names = [f"{name}/{key}" for key in member] if isinstance(member, h5py.Group) else [name]
        if names != [name] and (name != "observations" or "_index_0" in member):  # the first of a Tuple
            raise ValueError(
                f"`{name}` is a group, as of a Tuple; arrays and a Dict of observations are read"
            )
        for part in names:
            dataset = _member(h5py, episode, part)
            if not isinstance(dataset, h5py.Dataset):
                raise ValueError(f"`{part}` is a group of groups, and arrays are read")
            created = dataset.id.get_create_plist()
            filters = {created.get_filter(index)[0] for index in range(created.get_nfilters())}
            if dataset.external or dataset.is_virtual or not filters <= _FILTERS:
                raise ValueError(f"`{part}` lies in other files, or behind filters other than gzip and lzf")
            if dataset.dtype == object:
                raise ValueError(f"`{part}` holds {_NOT_PLAIN}")
            nbytes += check_size(part, dataset.shape, dataset.dtype)
            check_total(nbytes)
            check_total(int(np.prod(dataset.chunks or (0,), dtype=object)) * dataset.dtype.itemsize)
            found[part] = dataset
    return found


def _member(h5py: Any, group: Any, name: str) -> Any:
    """Return a member of a group; a ValueError for a link to another place or file."""
    link = group.get(name, getlink=True)
    if link is None:
        raise ValueError(f"it has no `{name}`, but {', '.join(group)[:80] or 'nothing'}")
    if not isinstance(link, h5py.HardLink):
        raise ValueError(f"`{name}` is a link, and what it leads to is not read")
    return group[name]


def _read_episode(arrays: dict[str, Any], parts: dict[str, Any], space: dict[str, Any] | None) -> RawEpisode:
    """Return one episode in the arrival convention, with the spaces of its observations and actions."""
    actions, rewards, terminations, truncations = (arrays.pop(name)[...] for name in _ARRAYS[1:])
    ends = terminations.astype(np.bool_) | truncations.astype(np.bool_)
    if rewards.ndim != 1 or ends.shape != rewards.shape or ends[:-1].any():
        found = f"rewards {rewards.shape} and ends {ends.shape}"
        raise ValueError(f"{found} need one number per step, and an end only at the last")
    observation, actions = {}, _scaled(actions, space)
    for name, dataset in arrays.items():
        key = name.partition("/")[2]
        if dataset.ndim == 2 and len(parts.get(key, {}).get("shape", ())) == 3:
            raise ValueError(f"`{name}` holds {_NOT_PLAIN}")
        default = "image" if dataset.ndim == 4 and dataset.dtype == np.uint8 else "vector"
        observation[key or default] = dataset[...]
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
    low, high = np.where(is_bounded, low, -1), np.where(is_bounded, high, 1)
    # In this form numbers within -1 and 1 stay bit for bit what they are.
    return (actions.reshape(len(actions), low.size) - (high + low) / 2) / ((high - low) / 2)


def write(folder: Path, episodes: Iterable[EpisodeRecords], spec: EpisodeSpec) -> int:
    """Write a dataset in one file, images as they are; return the number of its episodes.

    Its continuous actions are those of the model, in [-1, 1], as its space says.
    """
    h5py, size, sizes = _h5py(), spec.action.size, spec.action.parts
    count, steps = 0, 0
    (folder / "data").mkdir()
    with h5py.File(folder / "data" / DATA_FILE, "x", track_order=True) as file:
        for count, episode in enumerate(episodes, 1):
            actions, taken = episode.action[:-1], len(episode.reward) - 1
            if spec.action.is_discrete:
                blocks = np.split(actions, np.cumsum(sizes)[:-1], axis=1)
                chosen = np.stack([block.argmax(1) for block in blocks], axis=1)
                actions = chosen if sizes else chosen[:, 0]
            ends = np.arange(taken) == taken - 1
            group = file.create_group(f"episode_{count - 1}")
            group.attrs.update({"id": count - 1, "total_steps": taken})
            arrays = {
                "actions": actions,
                "rewards": episode.reward[1:],
                "terminations": ends & episode.is_terminal,
                "truncations": ends & (not episode.is_terminal),
                **{f"observations/{key}": values for key, values in episode.observation.items()},
            }
            for name, values in arrays.items():
                group.create_dataset(name, data=values, compression="gzip" if values.size else None)
            steps += taken
    space = _box(ArraySpec((size,)), bound=1.0)
    if sizes:
        space = {"type": "MultiDiscrete", "dtype": "int64", "nvec": sizes}
    elif spec.action.is_discrete:
        space = {"type": "Discrete", "dtype": "int64", "start": 0, "n": size}
    parts = {key: _box(part) for key, part in spec.observation.items()}
    metadata = {
        "dataset_id": f"reverie/{_NO_LETTER.sub('_', folder.name)}-v0",
        "minari_version": _VERSION,
        "total_episodes": count,
        "total_steps": steps,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": json.dumps({"type": "Dict", "subspaces": parts}),
        "action_space": json.dumps(space),
    }
    write_json(folder / "data" / METADATA, metadata)
    return count


def _box(part: ArraySpec, bound: float = np.inf) -> dict[str, Any]:
    """Return the space of all values of a dtype, or of floats up to a bound."""
    kind, limits = part.dtype.kind, np.iinfo(part.dtype) if part.dtype.kind in "iu" else None
    low, high = (limits.min, limits.max) if limits else (0, 1) if kind == "b" else (-bound, bound)
    ends = {"low": np.full(part.shape, low).tolist(), "high": np.full(part.shape, high).tolist()}
    return {"type": "Box", "dtype": str(part.dtype), "shape": list(part.shape), **ends}


def can_hold(key: str) -> bool:
    """Return whether an observation can have this name: a slash would make it a group."""
    return bool(key) and "/" not in key


def _spaces(file: Path) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return the space of the actions, None if unknown, and those of the observations, by key or "".

    Raises:
        UserError: If the metadata next to the file is damaged, or an observation is not a plain array.
    """
    path = file.with_name(METADATA)
    metadata = read_description(path) if path.exists() else {}
    with judging(path):
        action, shown = (
            parse_json(metadata.get(f"{name}_space", "null")) for name in ("action", "observation")
        )
        parts = shown["subspaces"] if shown and shown["type"] == "Dict" else {"": shown} if shown else {}
        for key, kind in [(key, part["type"]) for key, part in parts.items()]:
            if kind not in _SPACES:
                what = f"observation `{key}` is a {kind}" if key else f"observations are a {kind}"
                raise ValueError(f"its {what}, and {', '.join(_SPACES)} and a flat Dict of them are read")
        return action, parts


def _h5py() -> Any:
    """Return the library; a `UserError` if it is not installed."""
    try:
        import h5py
    except ImportError as error:
        raise UserError("Minari's files need h5py: pip install -c constraints.txt -e '.[minari]'.") from error
    return h5py
