"""Detect the format of episodes on disk, and read and write them."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ..buffers import EpisodeRecords
from ..utils.durable_io import replacing
from ..utils.errors import UserError
from ..utils.timestep import ActionSpec
from . import dreamerv3, minari, own
from .episode import (
    MOST_CHOICES,
    UNFINISHED,
    EpisodeSpec,
    RawEpisode,
    difference,
    is_one_hot,
    judging,
    spec_of,
    to_records,
)


class Format(Enum):
    """File format of episodes."""

    own = "own"
    dreamerv3 = "dreamerv3"
    minari = "minari"


_MODULES = {Format.own: own, Format.dreamerv3: dreamerv3, Format.minari: minari}

CONVERTER = "examples/convert_dreamerv3_torch.py"
"""Script that converts episodes of NM512/dreamerv3-torch."""


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes on disk, read one at a time: iterate over them as often as needed."""

    path: Path

    format: Format
    """Format of the files: `own`, `dreamerv3` or `minari`."""

    action: ActionSpec | None
    """Action spec stored in the files, or `None` if the format does not store it."""

    skipped: Counter[str]
    """Files in which the last read skipped an array, counted by name, and number of `UNFINISHED` records."""

    def __iter__(self) -> Iterator[EpisodeRecords]:
        """Yield checked episodes with actions as in `find_action`. See `read` for errors."""
        return self.read(find_action(self))

    def raw(self) -> Iterator[tuple[Path, RawEpisode]]:
        """Yield unconverted episodes with their files. See the reader of each format for errors."""
        self.skipped.clear()
        return _MODULES[self.format].read(self.path, self.skipped)

    @property
    def skipped_text(self) -> str:
        """Data that the last read skipped, e.g. "dyn/deter, stepid, 3 records of unfinished episodes"."""
        # Unary plus removes counts of zero.
        counts = +self.skipped
        count = counts.pop(UNFINISHED, 0)
        return ", ".join(sorted(counts) + [f"{count:,} {UNFINISHED}"] * (count > 0))

    def read(self, action: ActionSpec) -> Iterator[EpisodeRecords]:
        """Yield checked episodes. All must have the same observations as the first one.

        Raises:
            UserError: If there are no episodes, or one is invalid or differs. The message names its file.
        """
        first: EpisodeSpec | None = None
        for file, raw in self.raw():
            with judging(file):
                records = to_records(raw, action)
                spec = spec_of(records, action)
                first = first or spec
                if differs := difference(spec.observation, first.observation):
                    raise ValueError(f"its {differs} in the previous episodes")
            yield records
        if first is None:
            raise UserError(f"{self.path} has no complete episode. Choose another folder.")


def find_episodes(path: Path, key: str = "path") -> Episodes:
    """Return the episodes in a folder or file. The format is detected from file names.

    `key` is the name of the setting that the user set to this path.

    Raises:
        UserError: If no file name matches any format.
    """
    # Unlike `os.path.isfile`, pathlib raises an error if a name is too long.
    if os.path.isfile(path / own.INDEX):
        return Episodes(path, Format.own, own.read_index(path)[0].action, Counter())
    if (file := minari.find(path)) is not None:
        return Episodes(file, Format.minari, minari.read_action(file), Counter())
    files = sorted(path.glob("*.npz")) if os.path.isdir(path) else [path] if path.suffix == ".npz" else []
    if not files:
        names = f"{own.INDEX}, *.npz or {minari.DATA_FILE}"
        found = "has no episodes: it has no " + names if os.path.exists(path) else "does not exist"
        raise UserError(f"{key}={path} {found}. Choose a folder with episodes.")
    if not all(map(dreamerv3.is_chunk, files)):
        found = f"has npz files but no {own.INDEX}, and their names differ from dreamerv3's replay files"
        raise UserError(f"{key}={path} {found}. Convert files of dreamerv3-torch with {CONVERTER}.")
    return Episodes(path, Format.dreamerv3, None, Counter())


def find_action(episodes: Episodes) -> ActionSpec:
    """Return the stored or inferred action spec. Integers and one-hot rows are taken for discrete choices."""
    if episodes.action is not None:
        return episodes.action
    size, is_discrete = 0, True
    for file, raw in episodes.raw():
        with judging(file):
            taken = raw.action[:-1]
            if taken.dtype.kind in "iu":
                size = max(size, 1 + int(taken.max(initial=0)))
                if size > MOST_CHOICES:
                    raise ValueError(f"its actions go up to {size - 1:,}, but must be below {MOST_CHOICES:,}")
            else:
                # An episode with a single record has no action rows, but their size is still known.
                rows = raw.action.reshape(len(raw.action), -1)[:-1]
                size = rows.shape[1]
                is_discrete = is_discrete and size > 1 and is_one_hot(rows, (size,))
    if not size:
        raise UserError(f"{episodes.path} has no complete episode with actions. Choose another folder.")
    return ActionSpec(size, is_discrete)


def write_episodes(folder: Path, form: Format, episodes: Iterable[EpisodeRecords], spec: EpisodeSpec) -> int:
    """Write episodes with a common spec to a new folder atomically. Return their number.

    Raises:
        UserError: If the folder is not empty or cannot be written, or an observation key is not allowed.
    """
    if wrong := [key for key in spec.observation if not _MODULES[form].can_hold(key)]:
        raise UserError(f"`{wrong[0]}` is not a valid observation in format={form.value}. Rename it.")
    require_new(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as begun:
            begun.mkdir()
            return _MODULES[form].write(begun, episodes, spec)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"to={folder} cannot be written: {reason}. Choose another folder.") from error


def require_new(folder: Path) -> None:
    """Raise `UserError` if a folder is not empty or has no name, before any work is done."""
    if folder.name in ("", ".."):
        raise UserError(f"to={folder} is not a new folder. Write, e.g., to={folder}/episodes.")
    try:
        is_taken = (folder.is_dir() and any(folder.iterdir())) or folder.is_file()
    except OSError as error:
        raise UserError(f"to={folder} cannot be written: {error.strerror}. Choose another folder.") from error
    if is_taken:
        raise UserError(f"to={folder} is not empty, and files are never overwritten. Choose a new folder.")
