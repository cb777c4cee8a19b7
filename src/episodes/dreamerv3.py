"""The replay of danijar/dreamerv3: `<logdir>/replay/<time>-<uuid>-<successor>-<records>.npz`.

Each file is a chunk of up to 1,024 consecutive records of one stream, written by `Chunk.save` in
`embodied/core/chunk.py` (commit e3f0224). Its name includes the next chunk's UUID, and episodes may span
chunks. Row t of `action` was **chosen after** seeing record t, because `Driver._step` passes the record to
the policy. The row is zeros where `is_last` is set. Discrete actions are integers (one-hot before 2024). Keys
that start with `enc/`, `dyn/` or `dec/` are network latents. `stepid` (formerly `id`) and `consec` number the
records. Observation keys may also contain slashes, because `from_gym` joins the keys of nested Dicts with a
slash.
"""

import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..buffers import EpisodeRecords
from ..utils.units import count_text
from .episode import STEP_KEYS, UNFINISHED, EpisodeSpec, RawEpisode, check_total, judging
from .npz import led_arrays, read_steps, write_npz

_NAME = re.compile(r"(\d{8}T\d{6}F?\d*)-([0-9A-Za-z]{1,22})-([0-9A-Za-z]{1,22})-(\d{1,9})\.npz")
_OTHER_KEYS = ("id", "stepid", "consec", "reset")
_LATENTS = ("enc/", "dyn/", "dec/")
# The digits that `elements.UUID` uses.
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

Chunks = dict[str, tuple[Path, str, int]]
"""File, successor and number of records of each chunk, by UUID."""


def is_chunk(file: Path) -> bool:
    """Return whether a file has the name of a chunk."""
    return _NAME.fullmatch(file.name) is not None


def read(path: Path, skipped: Counter[str]) -> Iterator[tuple[Path, RawEpisode]]:
    """Yield the complete episodes, stream by stream, each with the file in which it ends.

    Episodes without a beginning or an end are skipped, e.g. those that were open at the end of a run.
    """
    chunks: Chunks = {}
    for file in sorted(path.glob("*.npz")) if path.is_dir() else [path]:
        if (name := _NAME.fullmatch(file.name)) is not None:
            chunks[name[2]] = file, name[3], int(name[4])
    followers = {successor for _, successor, _ in chunks.values()}
    for first in [number for number in chunks if number not in followers]:
        yield from _read_stream(chunks, first, skipped)
    # The chunks that are still unread form a cycle.
    for file, _, _ in chunks.values():
        with judging(file):
            raise ValueError("the chunks after it lead back to it")


def _read_stream(chunks: Chunks, number: str, skipped: Counter[str]) -> Iterator[tuple[Path, RawEpisode]]:
    """Yield a stream's episodes, starting with one chunk, and remove the chunks that have been read."""
    pieces: list[dict[str, NDArray]] = []
    while number in chunks:
        file, number, length = chunks.pop(number)
        arrays = read_steps(file, _is_read, skipped)
        with judging(file):
            if wrong := [name for name, values in arrays.items() if len(values) != length]:
                found, named = len(arrays[wrong[0]]), count_text(length, "record")
                raise ValueError(f"`{wrong[0]}` has {found} of the {named} in the file's name")
            is_first, is_last = arrays["is_first"], arrays["is_last"]
            cuts = {0, *np.flatnonzero(is_first).tolist(), *(np.flatnonzero(is_last) + 1).tolist(), length}
            for start, stop in pairwise(sorted(cuts)):
                if is_first[start]:
                    skipped[UNFINISHED] += _length(pieces)
                    pieces = []
                elif not pieces:
                    skipped[UNFINISHED] += stop - start
                    continue
                pieces.append({name: values[start:stop] for name, values in arrays.items()})
                check_total(sum(values.nbytes for piece in pieces for values in piece.values()))
                if is_last[stop - 1]:
                    episode, pieces = _join(pieces), []
                    yield file, episode
    skipped[UNFINISHED] += _length(pieces)


def _length(pieces: list[dict[str, NDArray]]) -> int:
    return sum(len(piece["is_last"]) for piece in pieces)


def _join(pieces: list[dict[str, NDArray]]) -> RawEpisode:
    whole = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    if whole["is_terminal"][:-1].any():
        raise ValueError("an episode continues after its terminal record")
    observation = {name: values for name, values in whole.items() if name not in STEP_KEYS}
    return RawEpisode(observation, whole["action"], whole["reward"], bool(whole["is_terminal"][-1]))


def write(folder: Path, episodes: Iterable[EpisodeRecords], spec: EpisodeSpec) -> int:
    """Write one chunk per episode, without latents (use `replay_context=0`). Return their number."""
    count, number = 0, uuid.uuid4()
    for count, episode in enumerate(episodes, 1):
        arrays = led_arrays(episode)
        action = episode.action
        arrays["action"] = action.argmax(1).astype(np.int32) if spec.action.is_onehot else action
        index = np.arange(len(episode.reward), dtype=">u4").view(np.uint8).reshape(-1, 4)
        identity = np.tile(np.frombuffer(number.bytes, np.uint8), (len(index), 1))
        arrays["stepid"] = np.concatenate([identity, index], axis=1)
        # The last chunk's successor does not exist, as is normal for an active run.
        following = uuid.uuid4()
        name = f"{_base62(number)}-{_base62(following)}-{len(index)}.npz"
        write_npz(folder / f"20000101T000000F{count:06d}-{name}", arrays)
        number = following
    return count


def _base62(number: uuid.UUID) -> str:
    """Format a number with 22 digits, as `elements.UUID` does."""
    digits, rest = "", number.int
    for _ in range(22):
        rest, digit = divmod(rest, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits


def can_hold(key: str) -> bool:
    """Return whether the format allows this observation key."""
    return key not in STEP_KEYS and _is_read(key)


def _is_read(name: str) -> bool:
    return not name.startswith(_LATENTS) and name not in _OTHER_KEYS
