"""Report what holds what and what was found: rows, metrics, sentences, and the table that people read."""

import math
from dataclasses import dataclass

from ..texts import aligned, count_text
from .verdict import MIN_SAMPLES, TrendClass

_HEADINGS = ("object", "MB", "pinned/shown", "growth", "per 1,000 steps", "planned", "device", "verdict")
_NONE_GROWS = "none grows beyond its plan"
_STILL = (TrendClass.flat.value, TrendClass.plateauing.value, "planned")


@dataclass(frozen=True, slots=True)
class ComponentRow:
    """One component at a report; MB = 1e6 bytes."""

    name: str
    """Such as `replay/observations`, a part of `replay`."""
    size_mb: float
    """Storages of tensors and arrays that it holds, its parts included."""
    pinned_per_shown: float
    """Bytes kept for each byte that tensors and arrays show; 1 without views, NaN where they show none."""
    device: str
    """Where they lie: `cpu`, `cuda:0`, `cpu+cuda:0`; empty where nothing is held."""
    growth_mb: float
    """Since the report before; in the first since its first sample."""
    growth_mb_per_1000_steps: float
    planned_mb: float | None
    """What it may grow to by design."""
    verdict: TrendClass
    """Of what it holds beyond the plan."""
    samples: int
    """What the verdict rests on; under 24 it is `undecided`."""
    path: str | None = None
    """Where a registered object is found; None for the run's own components."""
    is_gone: bool = False
    """Whether it was there before and is no more."""

    @property
    def remark(self) -> str:
        """The verdict, `planned` for growth within the plan, or `gone`."""
        if self.is_gone:
            return "gone"
        is_planned = self.planned_mb is not None and self.growth_mb > 0 and self.size_mb <= self.planned_mb
        return "planned" if is_planned else self.verdict.value

    @property
    def is_still(self) -> bool:
        """Whether it is no news: it does not grow beyond its plan, or nobody can know yet."""
        if self.is_gone:
            return self.path is None  # a part of the run's own comes and goes
        return self.remark in _STILL or self.samples < MIN_SAMPLES


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What holds what at one step; numbers and texts only."""

    step: int
    rows: tuple[ComponentRow, ...]
    total: ComponentRow
    """All storages of the run's own components, each once; registered objects are not added."""
    notes: tuple[str, ...] = ()

    def tags(self) -> dict[str, float]:
        """Return `memory/<object>/size_mb` and `memory/<object>/growth_mb_per_report` of every row."""
        tags = {}
        for row in self.rows:
            tags[f"memory/{row.name}/size_mb"] = row.size_mb
            tags[f"memory/{row.name}/growth_mb_per_report"] = row.growth_mb
        return tags

    @property
    def is_still(self) -> bool:
        """Whether the table has no news."""
        return all(row.is_still for row in (*self.rows, self.total))

    def summary(self) -> str:
        """Return the report in a line, for one without news."""
        if not self.rows:
            return "not measured before the first log line"
        waiting = sum(row.samples < MIN_SAMPLES for row in self.rows)
        size = f"{self.total.size_mb:,.1f} MB in {count_text(len(self.rows), 'part')}"
        if waiting == len(self.rows):
            return size  # the run is too short to judge any
        return f"{size}, " + (f"{waiting} of them not judged yet" if waiting else _NONE_GROWS)

    def table(self) -> str:
        """Return the report as plain text: a table, and a line for each note."""
        rows: list[tuple[str, ...]] = [_HEADINGS]
        for row in self.rows:
            depth = sum(row.name.startswith(f"{other.name}/") for other in self.rows)
            place = f" = {row.path}" if row.path else ""
            rows.append(_cells(row, f"{'  ' * depth}{row.name}{place}"))
        rows.append(_cells(self.total, self.total.name))
        title = f"Memory at step {self.step:,}, MB = 1e6 bytes"
        return "\n".join([title, *aligned(rows, ("object", "device", "verdict")), *self.notes])


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that grows, or a graph that outlives its update."""

    step: int
    resource: str
    verdict: TrendClass
    sources: tuple[str, ...]
    growth: str = ""
    """How fast, as text."""

    def text(self) -> str:
        """Return a line that says what grows, and one for each source."""
        is_certain = self.verdict is not TrendClass.growing
        what, remark = (self.verdict.value, "") if is_certain else ("growth", "; not yet a leak: it may end")
        head = f"memory: {what} of {self.resource} at step {self.step:,}{self.growth}{remark}"
        return "\n  ".join([head, *self.sources])


def _cells(row: ComponentRow, label: str) -> tuple[str, ...]:
    planned = "" if row.planned_mb is None else f"{row.planned_mb:,.2f}"
    ratio = "" if math.isnan(row.pinned_per_shown) else f"{row.pinned_per_shown:,.2f}"
    growth, rate = f"{row.growth_mb:+,.2f}", f"{row.growth_mb_per_1000_steps:+,.3f}"
    return label, f"{row.size_mb:,.2f}", ratio, growth, rate, planned, row.device, row.remark
