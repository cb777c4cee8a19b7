"""The episodes of NM512/dreamerv3-torch, and of DreamerV2: `<logdir>/train_eps/<name>-<records>.npz`.

One file for each episode, by `save_episodes` in its `tools.py` (commit 6ef8646). Row t of `action` is the
one that **led to** record t, since `simulate` adds it to the record that it returns; row 0 is zeros. It is
one-hot (`OneHotAction` in `envs/wrappers.py`), or in [-1, 1] (`NormalizeActions`). `discount` and `logprob`
repeat what is known, and keys with `log_` are left out of training there, so all these are left out here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..buffers import EpisodeRecords
from .episode import STEP_KEYS, EpisodeSpec, RawEpisode, counting, judging
from .npz import read_npz, write_npz

_OTHER_KEYS = ("discount", "logprob", "reset")


def read(path: Path, skipped: Counter[str]) -> Iterator[tuple[Path, RawEpisode]]:
    """Yield the episodes of a folder in the order of their names, or that of one file, with their files."""
    for file in sorted(path.glob("*.npz")) if path.is_dir() else [path]:
        yield file, read_file(file, skipped)


def read_file(file: Path, skipped: Counter[str], keys: Iterable[str] | None = None) -> RawEpisode:
    """Return the episode of one file; `keys` are its observations, None for all that is nothing else.

    Raises:
        UserError: If `read_npz` does, or it is not one whole episode.
    """
    is_read = _is_read if keys is None else {*keys, *STEP_KEYS}.__contains__
    arrays = read_npz(file, counting(is_read, skipped))
    with judging(file):
        require(arrays, *keys or ())
        is_first, is_terminal = flags(arrays, "is_first"), flags(arrays, "is_terminal")
        if is_first[:1].tolist() != [True] or is_first[1:].any() or is_terminal[:-1].any():
            raise ValueError("it is not one episode from its first to its last record")
        led = arrays["action"]
        chosen = np.concatenate([led[1:], np.zeros_like(led[:1])])
        observation = {key: values for key, values in arrays.items() if key not in STEP_KEYS}
        return RawEpisode(observation, chosen, arrays["reward"], bool(is_terminal[-1]))


def write(folder: Path, episodes: Iterable[EpisodeRecords], spec: EpisodeSpec) -> int:
    """Write episodes with the keys that its Atari and DeepMind Control episodes have; return their number."""
    count = 0
    for count, episode in enumerate(episodes, 1):
        arrays = led_arrays(episode)
        del arrays["is_last"]
        discount = 1 - arrays["is_terminal"].astype(np.float32)
        others = {"discount": discount, "logprob": np.zeros_like(discount)}
        write_npz(folder / file_name(count, episode), arrays | others)
    return count


def led_arrays(episode: EpisodeRecords) -> dict[str, NDArray]:
    """Return the arrays of an episode with each action next to the record that it led to."""
    position = np.arange(len(episode.reward))
    is_last = position == len(position) - 1
    led = np.concatenate([np.zeros_like(episode.action[:1]), episode.action[:-1]])
    of_step = (led, episode.reward, position == 0, is_last, is_last & episode.is_terminal)
    return {**episode.observation, **dict(zip(STEP_KEYS, of_step, strict=True))}


def file_name(number: int, episode: EpisodeRecords) -> str:
    """Return `episode_000001-8.npz`; the number of records behind the dash is read by its `count_steps`."""
    return f"episode_{number:06d}-{len(episode.reward)}.npz"


def require(arrays: Mapping[str, NDArray], *keys: str) -> None:
    """Raise ValueError if an array that every episode has, or one of `keys`, is not there; naming it."""
    if missing := {*keys, "action", "reward", "is_first", "is_terminal"} - arrays.keys():
        raise ValueError(f"it has no `{min(missing)}`, but {', '.join(sorted(arrays)) or 'nothing'}")


def flags(arrays: Mapping[str, NDArray], name: str) -> NDArray[np.bool_]:
    """Return an array as flags; a ValueError if it has not one for each record."""
    if arrays[name].ndim != 1:
        raise ValueError(f"`{name}` has the shape {arrays[name].shape}, and one flag for each record is read")
    return arrays[name].astype(np.bool_)


def can_hold(key: str) -> bool:
    """Return whether an observation can have this name."""
    return key not in STEP_KEYS and _is_read(key)


def _is_read(name: str) -> bool:
    return "log_" not in name and name not in _OTHER_KEYS
