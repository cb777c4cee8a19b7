"""Minari datasets in HDF5: `<dataset>/data/main_data.hdf5` and `metadata.json`.

The Minari library reads the files and writes the metadata. Arrays are written with h5py, because the library
does not compress them. Files are checked before the library reads them, because it follows links to other
files, reads arrays of any size, and imports and calls `env_spec` from the metadata if a space is missing.

Source: `minari/dataset/_storages/hdf5_storage.py` of Minari 0.5.4. Each episode is a group named
`episode_<n>`. Its `observations` (an array or a group of arrays) have one more row than `actions`, `rewards`,
`terminations` and `truncations`. Row t of these is the step **from** observation t: the action chosen after
seeing it, and the reward received on arriving at the next.
"""

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from ..buffers import EpisodeRecords
from ..envs.spaces import choices, convert_action, parts_of
from ..utils.durable_io import open_regular
from ..utils.errors import UserError
from ..utils.timestep import ActionSpec, ArraySpec
from .episode import (
    MOST_CHOICES,
    EpisodeSpec,
    RawEpisode,
    check_size,
    check_total,
    judging,
    model_actions,
    read_description,
    several,
)

DATA_FILE, METADATA = "main_data.hdf5", "metadata.json"
# Characters that are not allowed in dataset names.
_NO_LETTER = re.compile(r"[^\w-]")
# gzip, shuffle, fletcher32 and lzf. HDF5 would load any other filter as a library.
_FILTERS = {1, 2, 3, 32000}
_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def find(path: Path) -> Path | None:
    """Return the HDF5 file at a path. The path may be the file itself or a dataset folder."""
    places = (path, path / DATA_FILE, path / "data" / DATA_FILE)
    return next((place for place in places if place.name == DATA_FILE and os.path.isfile(place)), None)


def read_action(file: Path) -> ActionSpec:
    """Return the action spec from the metadata. Raise `UserError` if it is damaged or not supported."""
    space = _storage(file).action_space
    with judging(file.with_name(METADATA)):
        size = math.prod(space.shape)
        if size and isinstance(space, spaces.Box):
            return ActionSpec(size, is_discrete=False)
        return several(choices(space) if size <= MOST_CHOICES else ())


def read(path: Path, skipped: Counter[str]) -> Iterator[tuple[Path, RawEpisode]]:
    """Yield the episodes in numerical order, with continuous actions scaled to [-1, 1].

    Raises:
        UserError: If Minari is missing, or the files contain links or unsupported spaces, dtypes or shapes.
    """
    storage = _storage(path)
    # h5py raises this error for names that are not UTF-8.
    with judging(path, SystemError):
        for episode in storage.get_episodes(range(_checked(path))):
            skipped.update(["infos"] * (episode["infos"] is not None))
            yield path, _arrived(episode, storage.observation_space, storage.action_space)


def _arrived(episode: dict[str, Any], seen: spaces.Space, acting: spaces.Space) -> RawEpisode:
    """Return one episode in the arrival convention, given its observation and action spaces."""
    parts, observation = parts_of(seen), episode["observations"]
    observation = observation if isinstance(seen, spaces.Dict) else dict.fromkeys(parts, observation)
    for key, part in parts.items():
        check_size(key, observation[key].shape, observation[key].dtype)
        if observation[key].shape[1:] != part.shape:
            raise ValueError(f"`{key}` has the shape {observation[key].shape}, unlike its space {part.shape}")
    rewards = episode["rewards"]
    ends = np.logical_or(episode["terminations"], episode["truncations"])
    if rewards.ndim != 1 or ends.shape != rewards.shape or ends[:-1].any():
        found = f"rewards {rewards.shape} and ends {ends.shape}"
        raise ValueError(f"{found} must have one number per step, and an end only in the last step")
    actions = model_actions(acting, episode["actions"])
    last = np.zeros((1, *actions.shape[1:]), actions.dtype)
    reward = np.concatenate([np.zeros(1, rewards.dtype), rewards])
    is_terminal = bool(episode["terminations"][-1:].any())
    return RawEpisode(observation, np.concatenate([actions, last]), reward, is_terminal)


def _checked(path: Path) -> int:
    """Return the number of episodes in a file.

    Raises:
        ValueError: If it contains a link or data in other files, or an episode is too large.
    """
    h5py, nbytes, links = _packages()[0], Counter[str](), dict[str, Any]()
    with open_regular(path) as opened, h5py.File(opened, "r") as file:
        file.visititems_links(links.__setitem__)
        for name, link in links.items():
            data = file[name] if isinstance(link, h5py.HardLink) else None
            # Groups that contain the same group twice would be read exponentially often.
            if data is None or h5py.h5o.get_info(data.id).rc > 1:
                raise ValueError(f"`{name}` is a link, and links are not followed")
            if isinstance(data, h5py.Dataset):
                created = data.id.get_create_plist()
                filters = {created.get_filter(index)[0] for index in range(created.get_nfilters())}
                if data.external or data.is_virtual or not filters <= _FILTERS:
                    raise ValueError(f"`{name}` is in other files, or uses filters other than gzip and lzf")
                episode = name.partition("/")[0]
                numbers = max(math.prod(data.shape or ()), math.prod(data.chunks or ()))
                nbytes[episode] += numbers * data.dtype.itemsize
                check_total(nbytes[episode])
        return len(file)


def write(folder: Path, episodes: Iterable[EpisodeRecords], spec: EpisodeSpec) -> int:
    """Write a dataset with unencoded images to one file. Return the number of episodes.

    Continuous actions are the model's actions, clipped to [-1, 1], the bounds of the action space. These are
    the actions that environments execute.
    """
    h5py, library = _packages()
    size, sizes = spec.action.size, spec.action.parts
    acting = spaces.MultiDiscrete(list(sizes)) if sizes else spaces.Discrete(size)
    acting = acting if spec.action.is_discrete else spaces.Box(-1, 1, (size,))
    seen = spaces.Dict([(key, _box(part)) for key, part in spec.observation.items()])
    storage = library.MinariStorage.new(folder / "data", seen, acting, jpeg_encoding=False)
    count, steps = 0, 0
    with h5py.File(folder / "data" / DATA_FILE, "w", track_order=True) as file:
        for count, episode in enumerate(episodes, 1):
            actions, taken = episode.action[:-1].clip(-1, 1), len(episode.reward) - 1
            if spec.action.is_discrete:
                actions = np.array([convert_action(acting, action) for action in actions])
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
    dataset = f"reverie/{_NO_LETTER.sub('_', folder.name)}-v0"
    totals = {"total_episodes": count, "total_steps": steps}
    storage.update_metadata({"dataset_id": dataset, "minari_version": version("minari"), **totals})
    return count


def _box(part: ArraySpec) -> spaces.Box:
    """Return the space of all values of a dtype."""
    limits = np.iinfo(part.dtype) if part.dtype.kind in "iu" else None
    low, high = (
        (limits.min, limits.max) if limits else (0, 1) if part.dtype.kind == "b" else (-np.inf, np.inf)
    )
    return spaces.Box(low, high, part.shape, part.dtype.type)


def can_hold(key: str) -> bool:
    """Return whether the format allows this observation key. A slash would create a group."""
    return bool(key) and "/" not in key


def _storage(file: Path) -> Any:
    """Return Minari's storage of a dataset with its spaces.

    Raises:
        UserError: If the metadata is damaged or lacks a space, or an observation is not a plain array.
    """
    library, path = _packages()[1], file.with_name(METADATA)
    metadata = read_description(path)
    with judging(path):
        # Without a space, the library would import and call `env_spec`.
        if not {"action_space", "observation_space"} <= metadata.keys() or metadata["data_format"] != "hdf5":
            raise ValueError("it must contain an action_space, an observation_space and data_format hdf5")
        storage = library.MinariStorage.read(file.parent)
        parts = [*parts_of(storage.observation_space).items(), ("actions", storage.action_space)]
        for key, part in parts:
            if not isinstance(part, _SPACES):
                kinds = f"{', '.join(space.__name__ for space in _SPACES)} and a flat Dict of observations"
                raise ValueError(f"its `{key}` is a {type(part).__name__}, but only {kinds} are supported")
            if storage.jpeg_encoding and library.is_image_space(part):
                repair = "record the dataset with jpeg_encoding=False"
                raise ValueError(f"`{key}` consists of lossy JPEG images; {repair}")
        return storage


def _packages() -> tuple[Any, Any]:
    """Import h5py and Minari's storage. Raise `UserError` if one is not installed."""
    try:
        import h5py
        from minari.dataset import minari_storage
    except ImportError as error:
        install = "pip install -c constraints.txt -e '.[minari]'"
        raise UserError(f"Minari files need the package {error.name}: {install}.") from error
    return h5py, minari_storage
