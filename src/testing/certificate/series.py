"""The memory series of a finished run, each with its judgement."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...memory.leaks.detector import classify_resident
from ...memory.leaks.verdict import TrendClass, TrendTest, classify_trend
from ...memory.leaks.watched import WatchedCounter, accounted_tag
from ...utils.logging import read_lines
from ...utils.logging.writer import METRICS_FILE

AT_REST = (TrendClass.flat, TrendClass.plateauing)
"""What does not grow, or less and less."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A series and what to think of it."""

    resource: WatchedCounter
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    """In the resource's unit."""

    judged_from: int
    """First step of the judged part."""

    judgement: TrendTest

    @property
    def per_1000_steps(self) -> tuple[float, float, float]:
        """Slope and the ends of its interval, in the unit per 1,000 agent steps."""
        spacing = float(np.diff(self.steps).mean()) if len(self.steps) > 1 else 1.0
        factor = 1000 / spacing / self.resource.scale
        low, high = self.judgement.interval
        return self.judgement.slope_bytes_per_sample * factor, low * factor, high * factor

    def growth_text(self) -> str:
        """Return slope and interval as text."""
        slope, low, high = self.per_1000_steps
        if np.isnan(slope):
            return "too few samples for a slope"
        unit = self.resource.unit
        return (
            f"{slope:+.4f} {unit} per 1,000 steps ({low:+.4f} to {high:+.4f}) after step {self.judged_from:,}"
        )


def instruments_fraction(run_dir: Path) -> float:
    """Return the part of the run's wall time that counters, tracker, verdicts and graph searches took."""
    samples = _samples(run_dir)
    steps = np.array([0, *(line["step"] for line in samples)])
    seconds = np.diff(steps) / [line["speed/steps_per_second"] for line in samples]
    return float(np.average([line["time/memory_fraction"] for line in samples], weights=seconds))


def judged_series(run_dir: Path, watched: list[WatchedCounter], settled_step: int) -> list[Judged]:
    """Return every resource's series over the run, judged after `settled_step`.

    A resource that the system does not count is left out.
    """
    samples = _samples(run_dir)
    steps = np.array([line["step"] for line in samples], np.int64)
    found: dict[str, Judged] = {}
    for resource in watched:
        values = [resource.read(line) for line in samples]
        if None in values:
            continue
        series = np.array(values, np.float64)
        after = series[steps > settled_step]
        if resource.kept_from is None:
            judgement = classify_trend(after, resource.tolerance)
        else:
            held = found[resource.kept_from]
            judgement = classify_resident(held.judgement, after, held.resource.tolerance)
        found[resource.name] = Judged(resource, steps, series / resource.scale, settled_step, judgement)
    return list(found.values())


def _samples(run_dir: Path) -> list[dict[str, float]]:
    """Return the log lines that have a sample of memory."""
    return [line for line in read_lines(run_dir / METRICS_FILE) if accounted_tag("cpu") in line]
