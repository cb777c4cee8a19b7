"""Minari datasets in HDF5: `<dataset>/data/main_data.hdf5` and `metadata.json`.

Source: `minari/dataset/_storages/hdf5_storage.py` and `docs/content/dataset_standards.md` of Farama's Minari
(commit 1880118). Each episode is a group named `episode_<n>`. Its `observations` (an array or a group of
arrays) have one more row than `actions`, `rewards`, `terminations` and `truncations`. Row t of these is the
step **from** observation t: the action chosen after seeing it, and the reward received on arriving at the
next. JPEG images are not supported. Spaces are stored as JSON in `metadata.json` (`minari/serialization.py`).

The Minari library is not used, because it does not compress and is unsafe for untrusted files. If a space is
missing, it imports and calls `env_spec` from the metadata. It also follows links to other files and reads
arrays of any size.
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
# Characters that are not allowed in dataset names.
_NO_LETTER = re.compile(r"[^\w-]")
# gzip, shuffle, fletcher32 and lzf. HDF5 would load any other filter as a library.
_FILTERS = {1, 2, 3, 32000}
_NOT_PLAIN = "text or JPEG images, which lose detail; record the dataset with jpeg_encoding=False"
_ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations")
_SPACES = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
# The oldest version of Minari that supports `jpeg_encoding`.
_VERSION = "0.5.3"


def find(path: Path) -> Path | None:
    """Return the HDF5 file at a path. The path may be the file itself or a dataset folder."""
    places = (path, path / DATA_FILE, path / "data" / DATA_FILE)
    files = (place for place in places if place.suffix in (".hdf5", ".h5") and os.path.isfile(place))
    return next(files, None)


def read_action(file: Path) -> ActionSpec | None:
    """Return the action spec from the metadata, or `None` if the metadata is missing."""
    space, _ = _spaces(file)
    if space is None:
        return None
    with judging(file.with_name(METADATA)):
        kind = space["type"]
        if kind in ("Discrete", "MultiDiscrete"):
            return several(int(size) for size in (space["nvec"] if kind == "MultiDiscrete" else [space["n"]]))
        if kind != "Box":
            raise ValueError(f"its actions are a {kind}, not a Discrete, MultiDiscrete or Box")
        if not (size := int(np.prod(space["shape"], dtype=np.int64))):
            raise ValueError("its actions are empty")
        return ActionSpec(size, is_discrete=False)


def read(path: Path, skipped: Counter[str]) -> Iterator[tuple[Path, RawEpisode]]:
    """Yield the episodes in numerical order, with continuous actions scaled to [-1, 1].

    Raises:
        UserError: If h5py is missing, or the file contains links or unsupported filters, dtypes or shapes.
    """
    h5py, (space, parts) = _h5py(), _spaces(path)
    with judging(path), open_regular(path) as opened, h5py.File(opened, "r") as file:
        for _, name in sorted((int(name[1]), name[0]) for key in file if (name := _NAME.fullmatch(key))):
            group = _member(h5py, file, name)
            skipped.update(group.keys() - _ARRAYS)
            yield path, _read_episode(_arrays(h5py, group), parts, space)


def _arrays(h5py: Any, episode: Any) -> dict[str, Any]:
    """Return an episode's datasets by name, without reading them. Parts of a Dict are `observations/<key>`.

    Raises:
        ValueError: If a dataset is missing or not an array of numbers in this file, or they are too large in
            total.
    """
    found: dict[str, Any] = {}
    nbytes = 0
    for name in _ARRAYS:
        member = _member(h5py, episode, name)
        names = [f"{name}/{key}" for key in member] if isinstance(member, h5py.Group) else [name]
        # `_index_0` is the first part of a Tuple.
        if names != [name] and (name != "observations" or "_index_0" in member):
            raise ValueError(
                f"`{name}` is a group, e.g. of a Tuple; only arrays and a Dict of observations are supported"
            )
        for part in names:
            dataset = _member(h5py, episode, part)
            if not isinstance(dataset, h5py.Dataset):
                raise ValueError(f"`{part}` is a group of groups, but only arrays are supported")
            created = dataset.id.get_create_plist()
            filters = {created.get_filter(index)[0] for index in range(created.get_nfilters())}
            if dataset.external or dataset.is_virtual or not filters <= _FILTERS:
                raise ValueError(f"`{part}` is in other files, or uses filters other than gzip and lzf")
            if dataset.dtype == object:
                raise ValueError(f"`{part}` contains {_NOT_PLAIN}")
            nbytes += check_size(part, dataset.shape, dataset.dtype)
            check_total(nbytes)
            check_total(int(np.prod(dataset.chunks or (0,), dtype=object)) * dataset.dtype.itemsize)
            found[part] = dataset
    return found


def _member(h5py: Any, group: Any, name: str) -> Any:
    """Return a member of a group. Raise `ValueError` if it is a link to another location or file."""
    link = group.get(name, getlink=True)
    if link is None:
        raise ValueError(f"it has no `{name}`, only {', '.join(group)[:80] or 'an empty group'}")
    if not isinstance(link, h5py.HardLink):
        raise ValueError(f"`{name}` is a link, and links are not followed")
    return group[name]


def _read_episode(arrays: dict[str, Any], parts: dict[str, Any], space: dict[str, Any] | None) -> RawEpisode:
    """Return one episode in the arrival convention, given its observation and action spaces."""
    actions, rewards, terminations, truncations = (arrays.pop(name)[...] for name in _ARRAYS[1:])
    ends = terminations.astype(np.bool_) | truncations.astype(np.bool_)
    if rewards.ndim != 1 or ends.shape != rewards.shape or ends[:-1].any():
        found = f"rewards {rewards.shape} and ends {ends.shape}"
        raise ValueError(f"{found} must have one number per step, and an end only in the last step")
    observation, actions = {}, _scaled(actions, space)
    for name, dataset in arrays.items():
        key = name.partition("/")[2]
        if dataset.ndim == 2 and len(parts.get(key, {}).get("shape", ())) == 3:
            raise ValueError(f"`{name}` contains {_NOT_PLAIN}")
        default = "image" if dataset.ndim == 4 and dataset.dtype == np.uint8 else "vector"
        observation[key or default] = dataset[...]
    last = np.zeros((1, *actions.shape[1:]), actions.dtype)
    reward = np.concatenate([np.zeros(1, rewards.dtype), rewards])
    return RawEpisode(observation, np.concatenate([actions, last]), reward, bool(terminations[-1:].any()))


def _scaled(actions: NDArray, space: dict[str, Any] | None) -> NDArray:
    """Shift choices to start at 0, and scale bounded dimensions to [-1, 1] (see `convert_action`)."""
    if actions.dtype.kind in "iu":
        return actions - (space or {}).get("start", 0)
    if space is None:
        raise ValueError(f"continuous actions need bounds, but {METADATA} in the same folder has none")
    low, high = (np.asarray(space[end], np.float64).reshape(-1) for end in ("low", "high"))
    is_bounded = np.isfinite(low) & np.isfinite(high) & (low < high)
    low, high = np.where(is_bounded, low, -1), np.where(is_bounded, high, 1)
    # This formula leaves numbers with bounds -1 and 1 bit-for-bit unchanged.
    return (actions.reshape(len(actions), low.size) - (high + low) / 2) / ((high - low) / 2)


def write(folder: Path, episodes: Iterable[EpisodeRecords], spec: EpisodeSpec) -> int:
    """Write a dataset with unencoded images to one file. Return the number of episodes.

    Continuous actions are the model's actions in [-1, 1], which are the bounds of the action space.
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
    """Return the space of all values of a dtype, or of all floats within a bound."""
    kind, limits = part.dtype.kind, np.iinfo(part.dtype) if part.dtype.kind in "iu" else None
    low, high = (limits.min, limits.max) if limits else (0, 1) if kind == "b" else (-bound, bound)
    ends = {"low": np.full(part.shape, low).tolist(), "high": np.full(part.shape, high).tolist()}
    return {"type": "Box", "dtype": str(part.dtype), "shape": list(part.shape), **ends}


def can_hold(key: str) -> bool:
    """Return whether the format allows this observation key. A slash would create a group."""
    return bool(key) and "/" not in key


def _spaces(file: Path) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return the action space (`None` if unknown) and the observation spaces by key (or "" for an array).

    Raises:
        UserError: If the metadata is damaged, or an observation is not a plain array.
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
                raise ValueError(f"its {what}, but only {', '.join(_SPACES)} and a flat Dict are supported")
        return action, parts


def _h5py() -> Any:
    """Import h5py. Raise `UserError` if it is not installed."""
    try:
        import h5py
    except ImportError as error:
        raise UserError("Minari files need h5py: pip install -c constraints.txt -e '.[minari]'.") from error
    return h5py
