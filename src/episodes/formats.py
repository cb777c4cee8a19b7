"""Which format a path has, and how each is read and written."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from ..buffers import EpisodeRecords
from ..utils.durable_io import replacing
from ..utils.errors import UserError
from ..utils.timestep import ActionSpec
from . import dreamerv3, minari, own
from .episode import UNFINISHED, EpisodeSpec, RawEpisode, difference, is_one_hot, judging, spec_of, to_records


class Format(Enum):
    """A layout of episodes on disk."""

    own = "own"
    dreamerv3 = "dreamerv3"
    minari = "minari"


_MODULES = {Format.own: own, Format.dreamerv3: dreamerv3, Format.minari: minari}

CONVERTER = "examples/convert_dreamerv3_torch.py"
"""Script that converts episodes of NM512/dreamerv3-torch."""

MOST_CHOICES = 100_000
"""Most discrete actions that are read."""


class Episodes(NamedTuple):
    """Episodes on disk; iterating reads them, one at a time."""

    path: Path
    format: Format

    action: ActionSpec | None
    """What the files themselves say of the actions; None if they do not."""

    skipped: Counter[str]
    """Arrays that the last reading skipped, by name, with the number of their files; also `UNFINISHED`."""

    def raw(self) -> Iterator[tuple[Path, RawEpisode]]:
        """Yield the episodes as they are, with their files; raises as the reader of the format does."""
        self.skipped.clear()
        return _MODULES[self.format].read(self.path, self.skipped)

    @property
    def skipped_text(self) -> str:
        """What the last reading skipped, such as "dyn/deter, stepid, 3 records of unfinished episodes"."""
        counts = +self.skipped  # those above zero
        count = counts.pop(UNFINISHED, 0)
        return ", ".join(sorted(counts) + [f"{count:,} {UNFINISHED}"] * (count > 0))

    def read(self, action: ActionSpec) -> Iterator[EpisodeRecords]:
        """Yield the episodes, checked, all with the observations of the first one.

        Raises:
            UserError: Naming the file of the first episode that is no episode with these actions; or if there
                is no episode.
        """
        first: EpisodeSpec | None = None
        for file, raw in self.raw():
            with judging(file):
                records = to_records(raw, action)
                spec = spec_of(records, action)
                first = first or spec
                if differs := difference(spec.observation, first.observation):
                    raise ValueError(f"its {differs} in the episodes before it")
            yield records
        if first is None:
            raise UserError(f"{self.path} holds no whole episode. Name a folder that has one.")


def find_episodes(path: Path, key: str = "path") -> Episodes:
    """Return the episodes at a path, a folder or a file, by the names of what lies there.

    `key` is what the user typed before the path.

    Raises:
        UserError: If nothing there is named as one of the formats names it.
    """
    if os.path.isfile(path / own.INDEX):  # of a name that is too long pathlib would raise
        return Episodes(path, Format.own, own.read_index(path)[0].action, Counter())
    if (file := minari.find(path)) is not None:
        return Episodes(file, Format.minari, minari.read_action(file), Counter())
    files = sorted(path.glob("*.npz")) if os.path.isdir(path) else [path] if path.suffix == ".npz" else []
    if not files:
        names = f"{own.INDEX}, *.npz or {minari.DATA_FILE}"
        found = "holds no episodes: there is no " + names if os.path.exists(path) else "does not exist"
        raise UserError(f"{key}={path} {found}. Name the folder that has them.")
    if not all(map(dreamerv3.is_chunk, files)):
        found = f"has npz files, but no {own.INDEX}, and they are not named like dreamerv3's replay"
        raise UserError(f"{key}={path} {found}. Convert dreamerv3-torch's with {CONVERTER}.")
    return Episodes(path, Format.dreamerv3, None, Counter())


def find_action(episodes: Episodes) -> ActionSpec:
    """Return what the files say of the actions, or what all actions in them allow to conclude.

    Whole numbers are choices up to the largest one taken; rows of one 1 and else 0 are choices, too.
    """
    if episodes.action is not None:
        return episodes.action
    size, is_discrete = 0, True
    for file, raw in episodes.raw():
        with judging(file):
            taken = raw.action[:-1]
            if taken.dtype.kind in "iu":
                size = max(size, 1 + int(taken.max(initial=0)))
                if size > MOST_CHOICES:
                    raise ValueError(
                        f"its actions go up to {size - 1:,}, and fewer than {MOST_CHOICES:,} are read"
                    )
            else:
                rows = raw.action.reshape(len(raw.action), -1)[:-1]  # of one record: none, but of a size
                size = rows.shape[1]
                is_discrete = is_discrete and size > 1 and is_one_hot(rows, (size,))
    if not size:
        raise UserError(f"{episodes.path} holds no whole episode with actions. Name a folder that has one.")
    return ActionSpec(size, is_discrete)


def write_episodes(folder: Path, form: Format, episodes: Iterable[EpisodeRecords], spec: EpisodeSpec) -> int:
    """Write episodes of one spec into a new folder, all or none; return their number.

    Raises:
        UserError: If the folder holds anything or cannot be written, or the format has no place for the name
            of an observation.
    """
    if wrong := [key for key in spec.observation if not _MODULES[form].can_hold(key)]:
        raise UserError(f"`{wrong[0]}` is no name of an observation in format={form.value}. Choose another.")
    require_new(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as begun:
            begun.mkdir()
            return _MODULES[form].write(begun, episodes, spec)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"to={folder} cannot be written: {reason}. Name another folder.") from error


def require_new(folder: Path) -> None:
    """Refuse a folder that holds anything already, or has no name, before the work."""
    if folder.name in ("", ".."):
        raise UserError(f"to={folder} names no new folder. Name one, as in to={folder}/episodes.")
    try:
        is_taken = (folder.is_dir() and any(folder.iterdir())) or folder.is_file()
    except OSError as error:
        raise UserError(f"to={folder} cannot be written: {error.strerror}. Name another folder.") from error
    if is_taken:
        raise UserError(f"to={folder} is not empty, and nothing is written over. Name a new folder.")
