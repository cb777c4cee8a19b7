"""Read runs from their folders, group them by settings, and average their seeds on a common grid."""

import glob
import math
import os
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf

from ..checkpoints.run_folder import CONFIG_FILE
from ..checkpoints.shards import RANKS
from ..config.saved import read_config
from ..config.schema import leaves
from ..utils.errors import UserError, did_you_mean, printable
from ..utils.logging.json_lines import COMPRESSED, METRICS_FILE, read_lines
from ..utils.statistics import LEAST_SEEDS
from ..utils.units import count_text

RETURN = "return"
RETURN_TAGS = ("evaluation/return_mean", "episode/return", "population/fitness_best")
"""The metric `return` means the first of these tags that all runs log."""

Points = NDArray[np.float64]
"""(2, N) positions on the axis and their values, in chronological order."""

_NOT_COMPARED = tuple(
    "seed. threads. run_dir. resume. checkpoint. memory. logger. training.total_timesteps. "
    "training.generations. training.checkpoint_interval. training.keep_checkpoints. training.log_interval. "
    "training.video_interval. training.evaluation_interval.".split()
)
"""Settings in which runs of a group may differ, as prefixes of keys with a dot appended."""

_NAMED_LAST = ("device", "precision", "compile", "deterministic", "buffer.")
_MOST_PARTS, _FEW = 60, 20


class Axis(Enum):
    """Horizontal axis of the curves, with its label as the value."""

    steps = "agent steps"
    updates = "updates"
    frames = "frames"
    wall = "wall-clock hours"


@dataclass(frozen=True, slots=True)
class Run:
    """The settings and metrics found in a run's folder."""

    path: Path
    settings: Mapping[str, Any]
    """All settings by dotted key."""
    logged: Mapping[str, Points]
    """Agent steps and values by tag."""

    def points(self, tag: str, axis: Axis) -> Points:
        """Return a tag's finite values over an axis. Raise a `UserError` if the run lacks either."""
        steps, values = self._column(tag, f"metric={tag}")
        return np.stack([self._places(steps, axis), values])

    def end(self, axis: Axis) -> float:
        """Return the run's length in units of the axis, or NaN if the log does not include it."""
        try:
            last = max(steps[-1] for steps, _ in self.logged.values())
            return float(self._places(np.array([last]), axis)[0])
        except UserError:
            return math.nan

    def _column(self, tag: str, setting: str) -> Points:
        column = self.logged.get(tag, np.empty((2, 0)))
        column = column[:, np.isfinite(column[1])]
        if not column.size:
            raise UserError(f"{self.path} has no finite {tag} so far, so {setting} cannot be plotted.")
        return column

    def _places(self, steps: NDArray[np.float64], axis: Axis) -> NDArray[np.float64]:
        if axis in (Axis.steps, Axis.frames):
            return steps * (self.settings["env.action_repeat"] if axis is Axis.frames else 1)
        tag = "train/updates" if axis is Axis.updates else "speed/steps_per_second"
        known, values = np.pad(self._column(tag, f"x={axis.name}"), ((0, 0), (1, 0)))
        if axis is Axis.wall:
            spans = np.diff(known)
            # A log may start partway through a run.
            spans[0] = spans[:2].min()
            speeds = np.where(values[1:] > 0, values[1:], math.inf)
            values = np.append(0.0, np.cumsum(spans / speeds / 3600))
        return np.interp(steps, known, values)


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ only in their seeds."""

    name: str
    """The settings that distinguish this group from the others."""
    runs: Sequence[Run]
    grid: NDArray[np.float64]
    """(G,) positions on the axis."""
    rows: NDArray[np.float64]
    """(seeds, G) mean of each seed around each position, NaN before the seed's first and after its last
    value."""
    scores: NDArray[np.float64]
    """(seeds,) the last evaluation of each seed, or for other tags the mean of the last tenth of its
    values."""

    @property
    def title(self) -> str:
        """Name, number of seeds and statistic of the curve."""
        count = len(self.runs)
        kind = "" if count == 1 else "IQM of " if count >= LEAST_SEEDS else "mean of "
        return f"{printable(self.name)}: {kind}{count_text(count, 'seed')}"


def find_runs(names: Sequence[str]) -> list[Path]:
    """Return the run folders for the names of runs, folders that contain runs, and glob patterns.

    The logs of further `torchrun` processes within a run folder do not count as runs.

    Raises:
        UserError: If a name does not exist or contains no run.
    """
    found: dict[Path, Path] = {}
    for name in names:
        folders = [name] if os.path.exists(name) else sorted(glob.glob(name))
        logs = (METRICS_FILE, METRICS_FILE + COMPRESSED)
        runs = sorted({path.parent for folder in folders for log in logs for path in Path(folder).rglob(log)})
        runs = [run for run in runs if run.parent.name != RANKS or run.parents[1] not in runs]
        if not runs:
            problem = f"contains no run (no {METRICS_FILE})" if folders else "does not exist"
            raise UserError(f"{name} {problem}. Pass only paths of run folders, e.g. experiments/<run>.")
        for run in runs:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def read_run(path: Path) -> Run:
    """Read a run up to the last complete line of its metrics. Raise a `UserError` if a file is invalid."""
    if not os.path.lexists(path / CONFIG_FILE):
        raise UserError(f"{path} is not a run folder (no {CONFIG_FILE}).")
    config = OmegaConf.to_container(read_config(path / CONFIG_FILE), enum_to_str=True)
    logged: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in read_lines(path / METRICS_FILE):
        step = line.pop("step")
        for tag, value in line.items():
            if not isinstance(value, list):
                logged[tag].append((step, float(value)))
    return Run(path, dict(leaves(config)), {tag: np.array(pairs, float).T for tag, pairs in logged.items()})


def with_returns(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that have finished at least one episode, and report the others on stderr.

    Raises:
        UserError: If none of the runs has finished an episode.
    """
    kept = [run for run in runs if not run.logged.keys().isdisjoint(RETURN_TAGS)]
    for run in runs:
        if run in kept:
            continue
        reason = "no finished episode" if run.logged else "no complete line"
        message = f"{run.path / METRICS_FILE} has {reason} yet"
        if not kept:
            other = ", or set metric=<tag>" if run.logged else ""
            raise UserError(f"{message}. Wait for the run's first metrics{other}.")
        print(f"skipped: {printable(message)}", file=sys.stderr)
    return kept


def find_tag(metric: str, runs: Sequence[Run]) -> str:
    """Return the tag for `metric`: a complete tag, parts of one in order, or `return`.

    Raises:
        UserError: If no tag or several tags match.
    """
    tags = sorted({tag for run in runs for tag in run.logged})
    if metric == RETURN:
        common = [tag for tag in RETURN_TAGS if all(tag in run.logged for run in runs)]
        if not common:
            raise UserError(f"no tag of {', '.join(RETURN_TAGS)} is in all runs. Set metric=<tag>.")
        return common[0]
    parts = "/(.*/)?".join(map(re.escape, metric.split("/")))
    meant = [tag for tag in tags if re.fullmatch(f"(.*/)?{parts}", tag)]
    if metric in tags or len(meant) == 1:
        return metric if metric in tags else meant[0]
    why = f"matches several tags: {', '.join(meant[:3])}" if meant else "is not a tag of these runs"
    raise UserError(f"metric={metric} {why}.{did_you_mean(metric, tags)} metric=list lists all.")


def group_runs(runs: Sequence[Run], tag: str, axis: Axis) -> tuple[list[Group], dict[str, list[str]]]:
    """Group runs with equal settings. Return the groups and the text of each differing setting in each group.

    Raises:
        UserError: If a run lacks the tag or axis.
    """
    members: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        compared = {key: str(value) for key, value in run.settings.items()}
        kept = tuple(pair for pair in compared.items() if not f"{pair[0]}.".startswith(_NOT_COMPARED))
        members.setdefault(kept, []).append(run)
    settings = [dict(kept) for kept in members]
    keys = {key: None for each in settings for key in each}
    texts = {key: [each.get(key, "-") for each in settings] for key in keys}
    differing = {key: each for key, each in texts.items() if len(set(each)) > 1}
    by_use = sorted(differing, key=lambda key: key.startswith(_NAMED_LAST))
    chosen: list[str] = []

    def count_separated(keys: list[str]) -> int:
        return len({tuple(texts[key][group] for key in keys) for group in range(len(settings))})

    while count_separated(chosen) < len(settings):
        chosen.append(max(by_use, key=lambda key: count_separated([*chosen, key])))
    more = f" (+{hidden} more)" if (hidden := len(differing) - len(chosen)) else ""
    groups = []
    for number, (each, inside) in enumerate(zip(settings, members.values(), strict=True)):
        name = ", ".join(f"{key}={texts[key][number]}" for key in chosen) or each["name"]
        points = [run.points(tag, axis) for run in inside]
        tails = [values[-1 if is_evaluation(tag) else -math.ceil(len(values) / 10) :] for _, values in points]
        groups.append(Group(name + more, inside, *on_grid(points), np.array([tail.mean() for tail in tails])))
    return groups, differing


def is_evaluation(tag: str) -> bool:
    """Return whether a tag's values are means over entire evaluations, so that the last one is the score."""
    return tag.startswith("evaluation/")


def on_grid(seeds: Sequence[Points]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the centers (G,) of equal bins along the axis, and each seed's means (seeds, G) in them.

    There are at most 60 bins, each with at least two values on average. Empty bins are interpolated, but are
    NaN before the first and after the last value of a seed. Without a seed of more than 20 values, all
    positions are used instead of bins.
    """
    places = np.concatenate([each for each, _ in seeds])
    if max(len(each) for each, _ in seeds) <= _FEW:
        middles = np.unique(places)
        return middles, np.array([np.interp(middles, *each, left=np.nan, right=np.nan) for each in seeds])
    count = min(_MOST_PARTS, max(1, round(len(places) / len(seeds) / 2)))
    edges = np.linspace(places.min(), places.max(), count + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    rows = []
    for at, values in seeds:
        part = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, count - 1)
        size = np.bincount(part, minlength=count)
        filled = np.flatnonzero(size)
        means = np.bincount(part, values, minlength=count)[filled] / size[filled]
        rows.append(np.interp(middles, middles[filled], means, left=np.nan, right=np.nan))
    return middles, np.array(rows)
