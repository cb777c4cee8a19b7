"""Verdicts on a finished run's memory series, and the length of a run that would decide them."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from heapwatch.leaks.detector import WatchedCounter, accounted_tag, classify_resident
from heapwatch.leaks.verdict import MIN_SAMPLES, TrendClass, TrendTest, classify_trend
from numpy.typing import NDArray

from ..config.dreamer import DreamerTrainConfig
from ..config.schema import TrainConfig
from ..utils.logging.json_lines import METRICS_FILE, read_lines
from ..utils.units import count_text

AT_REST = (TrendClass.flat, TrendClass.plateauing)
"""Verdicts on series without growth or with slowing growth."""

FIRST_TIMES = (
    "learning_starts",
    "warmup_steps",
    "video_interval",
    "evaluation_interval",
    "checkpoint_interval",
)
"""Dreamer's settings for the steps of first-time events. Judging starts after the last such event."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A series in the resource's unit, and its verdict from step `judged_from` onward."""

    resource: WatchedCounter
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    judged_from: int
    judgement: TrendTest

    @property
    def per_1000_steps(self) -> tuple[float, float, float]:
        """Slope and bounds of its interval, in the resource's unit per 1,000 agent steps."""
        spacing = float(np.diff(self.steps).mean()) if len(self.steps) > 1 else 1.0
        factor = 1000 / spacing / self.resource.scale
        low, high = self.judgement.interval
        return self.judgement.slope_bytes_per_sample * factor, low * factor, high * factor

    def texts(self) -> tuple[str, str, str]:
        """Return the verdict, the last value, and the slope with its interval."""
        unit = self.resource.unit
        slope, low, high = self.per_1000_steps
        slopes = f"{slope:+.4f} {unit} per 1,000 steps ({low:+.4f} to {high:+.4f})"
        is_known = not np.isnan(slope)
        growth = f"{slopes} after step {self.judged_from:,}" if is_known else "too few samples for a slope"
        last = f"{self.values[-1]:,.1f} MB" if unit == "MB" else f"{self.values[-1]:,.0f}"
        return self.judgement.verdict.value, last, growth


def instruments_fraction(run_dir: Path) -> float:
    """Return the fraction of wall time spent on counters, tracking, verdicts and graph searches."""
    samples = _samples(run_dir)
    steps = np.array([0, *(line["step"] for line in samples)])
    seconds = np.diff(steps) / [line["speed/steps_per_second"] for line in samples]
    return float(np.average([line["time/memory_fraction"] for line in samples], weights=seconds))


def judged_series(run_dir: Path, watched: list[WatchedCounter], settled_step: int) -> list[Judged]:
    """Return the series of all resources that this system has, judged after `settled_step`."""
    samples = _samples(run_dir)
    steps = np.array([line["step"] for line in samples], np.int64)
    found: dict[str, Judged] = {}
    for resource in watched:
        values = [resource.read(line) for line in samples]
        if None in values:
            continue
        series = np.array(values, np.float64)
        after, steps_after = series[steps > settled_step], steps[steps > settled_step]
        if resource.kept_from is None:
            judgement = classify_trend(after, resource.tolerance, steps_after)
        else:
            held = found[resource.kept_from]
            judgement = classify_resident(held.judgement, after, held.resource.tolerance, steps_after)
        found[resource.name] = Judged(resource, steps, series / resource.scale, settled_step, judgement)
    return list(found.values())


def _samples(run_dir: Path) -> list[dict[str, float]]:
    """Return the log lines that contain a memory sample."""
    return [line for line in read_lines(run_dir / METRICS_FILE) if accounted_tag("cpu") in line]


@dataclass(frozen=True, slots=True)
class ToDecide:
    """A longer run that would decide the verdict, and the reason why the current run does not."""

    steps: int
    settings: str
    """Command-line settings of the longer run."""

    samples: int
    """Number of samples after the step `judged_from` in the current run."""

    judged_from: int

    def text(self) -> str:
        """Return the reason and the settings, one sentence each."""
        found = f"{count_text(self.samples, 'sample')} after step {self.judged_from:,}"
        if self.samples < MIN_SAMPLES:
            return f"{found}, but a verdict needs {MIN_SAMPLES}. Repeat the run with {self.settings}."
        return f"{found} are neither flat nor clearly growing. Get twice as many with {self.settings}."


def to_decide(config: TrainConfig, steps: NDArray[np.int64], judged_from: int, longest: int) -> ToDecide:
    """Return a longer run with 24 judged samples or, if `config`'s run has those, with twice its number.

    `steps` are the steps of that run's samples (at least one). A Dreamer run is limited to
    `longest` agent steps and takes samples more frequently instead.
    """
    samples = int((steps > judged_from).sum())
    # Plan one more sample, because samples are slightly late.
    wanted = 1 + (MIN_SAMPLES if samples < MIN_SAMPLES else 2 * samples)
    if not isinstance(config, DreamerTrainConfig):
        generations = len(steps) - samples + wanted
        end = math.ceil(generations * int(steps[-1]) / len(steps))
        return ToDecide(end, f"training.generations={generations} certify.steps=null", samples, judged_from)
    training = config.training
    spacing = max(training.log_interval, config.env.num_envs)
    begin, end = judged_from, judged_from + wanted * spacing
    for due in sorted(getattr(training, name) for name in FIRST_TIMES):
        # If the longer run reaches another first-time event, it is judged after this event.
        if begin < due < end:
            begin, end = due, due + wanted * spacing
    if end > longest:
        spacing = max(config.env.num_envs, (longest - begin) // wanted)
        settings = f"certify.steps={longest} training.log_interval={spacing}"
        return ToDecide(longest, settings, samples, judged_from)
    return ToDecide(end, f"certify.steps={end}", samples, judged_from)
