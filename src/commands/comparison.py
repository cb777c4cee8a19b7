"""Runs that are compared: read from their folders, grouped by settings, brought onto one grid over seeds."""

import difflib
import glob
import math
import os
import sys
from array import array
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
from ..utils.errors import UserError, printable
from ..utils.logging import read_lines
from ..utils.logging.json_lines import COMPRESSED
from ..utils.logging.writer import METRICS_FILE
from ..utils.statistics import LEAST_SEEDS
from ..utils.units import count_text

RETURN = "return"
RETURN_TAGS = ("evaluation/return_mean", "episode/return", "population/fitness_best")
"""What `return` is: the first of them that every run logs."""

Points = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Where on the axis, and the values there; both (N,), finite, in the order of the run."""

Logged = tuple["array[float]", "array[float]"]
"""Steps and values of a tag, one for each line that has it."""

_UPDATES, _SPEED = "train/updates", "speed/steps_per_second"
_NOT_COMPARED = (
    "seed run_dir resume checkpoint memory logger training.total_timesteps training.generations "
    "training.checkpoint_interval training.keep_checkpoints training.log_interval training.video_interval "
    "training.evaluation_interval training.probe_interval"
).split()
_NAMED_LAST = ("device", "precision", "compile", "deterministic", "buffer.")
_MOST_PARTS = 60


class Axis(Enum):
    """What a run is drawn against; its value is the label."""

    steps = "agent steps"
    updates = "updates"
    frames = "frames"
    wall = "hours by the clock"


@dataclass(frozen=True, slots=True)
class Run:
    """A run as its folder has it."""

    path: Path
    settings: Mapping[str, Any]
    """Every setting by its dotted key."""
    logged: Mapping[str, Logged]
    """By tag."""

    def points(self, tag: str, axis: Axis) -> Points:
        """Return the finite values of a tag against an axis; a `UserError` if the run lacks one of them."""
        steps, values = (np.array(column) for column in self._column(tag, "metric"))
        kept = np.isfinite(values)
        if not kept.any():
            raise UserError(f"{self.path} has logged no finite {tag}, so there is nothing to draw for it.")
        return self._places(steps[kept], axis), values[kept]

    def end(self, axis: Axis) -> float:
        """Return how far the run is, in units of the axis; a `UserError` if the run does not log it."""
        last = max(steps[-1] for steps, _ in self.logged.values())
        return float(self._places(np.array([last]), axis)[0])

    def _column(self, tag: str, setting: str) -> Logged:
        if tag not in self.logged:
            raise UserError(f"{self.path} has logged no {tag} so far, so {setting} cannot be drawn for it.")
        return self.logged[tag]

    def _places(self, steps: NDArray[np.float64], axis: Axis) -> NDArray[np.float64]:
        if axis is Axis.steps:
            return steps
        if axis is Axis.frames:
            return steps * self.settings["env.action_repeat"]
        tag = _UPDATES if axis is Axis.updates else _SPEED
        known, values = (np.array([0.0, *column]) for column in self._column(tag, f"x={axis.name}"))
        if axis is Axis.wall:
            spans = np.diff(known)
            spans[0] = spans[:2].min()  # a log may begin in the middle of a run
            hours = spans / np.where(values[1:] > 0, values[1:], math.inf) / 3600
            values = np.array([0.0, *np.cumsum(hours)])
        return np.interp(steps, known, values)


@dataclass(frozen=True, slots=True)
class Group:
    """Runs with equal settings but for their seeds."""

    name: str
    """Settings that tell it from the other groups."""
    runs: Sequence[Run]
    grid: NDArray[np.float64]
    """(G,) places on the axis."""
    rows: NDArray[np.float64]
    """(seeds, G) the mean of each seed around each place; NaN before its first value and after its last."""
    scores: NDArray[np.float64]
    """(seeds,) the last evaluation of each; of any other tag the mean of the last tenth of its values."""

    @property
    def title(self) -> str:
        """Name, seeds, and what the curve is."""
        count = len(self.runs)
        kind = count_text(count, "seed")
        if count > 1:
            kind = f"{'IQM' if count >= LEAST_SEEDS else 'mean'} of {kind}"
        return f"{printable(self.name)}: {kind}"


def find_runs(names: Sequence[str]) -> list[Path]:
    """Return the folders of all runs that are named: each itself, in a folder of runs, or by a pattern.

    What further processes of `torchrun` have logged is no run of its own next to that of the first.

    Raises:
        UserError: If a name is no folder, or there is no run in it.
    """
    found: dict[Path, Path] = {}
    for name in names:
        folders = [Path(name)] if os.path.exists(name) else [Path(each) for each in sorted(glob.glob(name))]
        logs = (METRICS_FILE, METRICS_FILE + COMPRESSED)
        runs = sorted({path.parent for folder in folders for log in logs for path in folder.rglob(log)})
        runs = [run for run in runs if run.parent.name != RANKS or run.parents[1] not in runs]
        if not runs:
            what = f"holds no run: there is no {METRICS_FILE} in it" if folders else "does not exist"
            raise UserError(f"{name} {what}. Name folders of runs, as in experiments/<run>.")
        for run in runs:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def read_run(path: Path) -> Run:
    """Return a run up to the last whole line of its metrics; a `UserError` if a file is not a run's."""
    if not os.path.lexists(path / CONFIG_FILE):
        raise UserError(f"{path} holds no run: it has no {CONFIG_FILE}.")
    config = OmegaConf.to_container(read_config(path / CONFIG_FILE), enum_to_str=True)
    logged: dict[str, Logged] = {}
    for line in read_lines(path / METRICS_FILE):
        step = line.pop("step")
        for tag, value in line.items():
            if not isinstance(value, list):
                steps, values = logged.setdefault(tag, (array("d"), array("d")))
                steps.append(step)
                values.append(float(value))
    return Run(path, dict(leaves(config)), logged)


def with_returns(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that have finished an episode, and report the others on stderr.

    Raises:
        UserError: If none of them has.
    """
    kept = [run for run in runs if not run.logged.keys().isdisjoint(RETURN_TAGS)]
    for run in runs:
        if run in kept:
            continue
        reason = "no finished episode" if run.logged else "no whole line"
        message = f"{run.path / METRICS_FILE} has {reason} yet"
        if not kept:
            raise UserError(f"{message}. Wait for the run's first metrics, or name a tag by metric=<tag>.")
        print(f"skipped: {printable(message)}", file=sys.stderr)
    return kept


def find_tag(metric: str, runs: Sequence[Run]) -> str:
    """Return the tag that is typed: itself, parts of it in order, or `return`; a `UserError` if none."""
    tags = sorted({tag for run in runs for tag in run.logged})
    if metric == RETURN:
        common = [tag for tag in RETURN_TAGS if all(tag in run.logged for run in runs)]
        if not common:
            raise UserError(f"no tag of {', '.join(RETURN_TAGS)} is in every run. Name one by metric=<tag>.")
        return common[0]
    if metric in tags:
        return metric
    meant = [tag for tag in tags if _is_short_for(metric.split("/"), tag.split("/"))]
    if len(meant) == 1:
        return meant[0]
    near = meant or difflib.get_close_matches(metric, tags, n=3, cutoff=0.4)
    hint = f" The closest are {', '.join(near[:3])};" if near else ""
    why = "is not one tag" if meant else "is no tag of these runs"
    raise UserError(f"metric={metric} {why}.{hint} metric=list lists all.")


def _is_short_for(parts: list[str], whole: list[str]) -> bool:
    left = iter(whole)
    return parts[-1] == whole[-1] and all(part in left for part in parts)


def group_runs(runs: Sequence[Run], tag: str, axis: Axis) -> tuple[list[Group], dict[str, list[str]]]:
    """Return the groups of runs, and of each setting that differs its text in each group.

    Seed, folder, length, and what is shown and stored do not part runs. A group is named by the fewest
    settings that tell all groups apart, and how many more differ. A `UserError` if a run lacks tag or axis.
    """
    of_group: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        kept = ((key, str(value)) for key, value in run.settings.items() if not _is_left_out(key))
        of_group.setdefault(tuple(kept), []).append(run)
    settings = [dict(kept) for kept in of_group]
    keys = {key: None for each in settings for key in each}
    texts = {key: [each.get(key, "-") for each in settings] for key in keys}
    differing = {key: each for key, each in texts.items() if len(set(each)) > 1}
    by_use = sorted(differing, key=lambda key: key.startswith(_NAMED_LAST))
    chosen: list[str] = []

    def count_parted(keys: list[str]) -> int:
        return len(set(zip(*(texts[key] for key in keys), strict=True))) if keys else 1

    while count_parted(chosen) < len(settings):
        chosen.append(max(by_use, key=lambda key: count_parted([*chosen, key])))
    hidden = len(differing) - len(chosen)
    groups = []
    for members, each in zip(of_group.values(), settings, strict=True):
        name = ", ".join(f"{key}={each.get(key, '-')}" for key in chosen) or each["name"]
        points = [run.points(tag, axis) for run in members]
        last = [1 if is_evaluation(tag) else math.ceil(len(values) / 10) for _, values in points]
        scores = np.array([values[-count:].mean() for count, (_, values) in zip(last, points, strict=True)])
        groups.append(Group(name + f" (+{hidden} more)" * (hidden > 0), members, *on_grid(points), scores))
    return groups, differing


def _is_left_out(key: str) -> bool:
    return any(f"{key}.".startswith(f"{name}.") for name in _NOT_COMPARED)


def is_evaluation(tag: str) -> bool:
    """Return whether the values of a tag are means over whole evaluations, so that the last one counts."""
    return tag.startswith("evaluation/")


def on_grid(seeds: Sequence[Points]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the middles (G,) of equal parts of the axis, and the means in them (seeds, G).

    There are at most 60 parts, with two values in each on the average. A part in which a seed has no value is
    interpolated; before its first and after its last value it is NaN.
    """
    places = np.concatenate([each for each, _ in seeds])
    count = min(_MOST_PARTS, max(1, round(len(places) / len(seeds) / 2)))
    edges = np.linspace(places.min(), places.max(), count + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    rows = np.full((len(seeds), count), np.nan)
    for row, (at, values) in zip(rows, seeds, strict=True):
        part = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, count - 1)
        size = np.bincount(part, minlength=count)
        held = np.flatnonzero(size)
        means = np.bincount(part, values, minlength=count)[held] / size[held]
        inside = slice(held[0], held[-1] + 1)
        row[inside] = np.interp(middles[inside], middles[held], means)
    return middles, rows
