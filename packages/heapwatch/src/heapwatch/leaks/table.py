"""Format memory reports: rows, metrics, sentences, and a human-readable table."""

import math
from dataclasses import dataclass

from ..objects.growth import Message
from ..texts import aligned, count_text
from .verdict import MIN_SAMPLES, TrendClass

_HEADINGS = ("object", "MB", "pinned/shown", "growth", "per 1,000 steps", "planned", "device", "verdict")
_NONE_GROWS = "none grows beyond its plan"
_STILL = (TrendClass.flat.value, TrendClass.plateauing.value, "planned")


@dataclass(frozen=True, slots=True)
class ComponentRow:
    """One component in a report. MB are 1e6 bytes."""

    name: str
    """Name, such as `replay/observations` for a part of `replay`."""
    size_mb: float
    """Storages of the component's tensors and arrays, including its parts."""
    pinned_per_shown: float
    """Bytes of storage per byte of tensors and arrays: 1 without views, NaN without elements."""
    device: str
    """Devices of the storages: `cpu`, `cuda:0`, `cpu+cuda:0`, or empty without storages."""
    growth_mb: float
    """Growth since the previous report, or since the first sample."""
    growth_mb_per_1000_steps: float
    planned_mb: float | None
    """Size up to which growth is planned."""
    verdict: TrendClass
    """Verdict on the memory beyond the plan."""
    samples: int
    """Number of samples behind the verdict. Below 24 it is `undecided`."""
    is_gone: bool = False
    """Whether the component no longer exists."""

    @property
    def remark(self) -> str:
        """The verdict, `planned` for growth within the plan, or `gone`."""
        if self.is_gone:
            return "gone"
        is_planned = self.planned_mb is not None and self.growth_mb > 0 and self.size_mb <= self.planned_mb
        return "planned" if is_planned else self.verdict.value

    @property
    def is_still(self) -> bool:
        """Whether the row is uneventful: no growth beyond the plan, or too few samples."""
        # Components may come and go.
        return self.is_gone or self.remark in _STILL or self.samples < MIN_SAMPLES


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Sizes of all components at one step, as numbers and strings without references."""

    step: int
    rows: tuple[ComponentRow, ...]
    total: ComponentRow
    """All storages of the components, each counted once."""
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
        """Whether no row is eventful."""
        return all(row.is_still for row in (*self.rows, self.total))

    def summary(self) -> str:
        """Return the report in one line, for an uneventful report."""
        if not self.rows:
            return "not measured before the first log line"
        waiting = sum(row.samples < MIN_SAMPLES for row in self.rows)
        size = f"{self.total.size_mb:,.1f} MB in {count_text(len(self.rows), 'part')}"
        if waiting == len(self.rows):
            # The run is too short to judge any part.
            return size
        return f"{size}, " + (f"{waiting} of them not judged yet" if waiting else _NONE_GROWS)

    def table(self) -> str:
        """Return the report as plain text: a table, and one line per note."""
        rows: list[tuple[str, ...]] = [_HEADINGS]
        for row in self.rows:
            depth = sum(row.name.startswith(f"{other.name}/") for other in self.rows)
            rows.append(_cells(row, f"{'  ' * depth}{row.name}"))
        rows.append(_cells(self.total, self.total.name))
        title = f"Memory at step {self.step:,}, MB = 1e6 bytes"
        return "\n".join([title, *aligned(rows, ("object", "device", "verdict")), *self.notes])


@dataclass(frozen=True, slots=True)
class Finding:
    """A growing resource, or a graph that outlives its update."""

    step: int
    resource: str
    verdict: TrendClass
    sources: tuple[str, ...]
    """Paths to the holders, or the reason for the growth."""
    growth: str = ""
    """Growth rate as text."""
    messages: tuple[Message, ...] = ()
    """One sentence for each cause, with its fix if it is known."""

    def text(self, verbose: bool = False) -> str:
        """Return a line for the growth, and a line for each cause. `verbose` adds the paths."""
        is_certain = self.verdict is not TrendClass.growing
        what, remark = (self.verdict.value, "") if is_certain else ("growth", "; not yet a leak: it may end")
        head = f"memory: {what} of {self.resource} at step {self.step:,}{self.growth}{remark}"
        shown = (*self.messages, *self.sources) if verbose else self.messages or self.sources
        return "\n  ".join([head, *map(str, shown)])


def _cells(row: ComponentRow, label: str) -> tuple[str, ...]:
    planned = "" if row.planned_mb is None else f"{row.planned_mb:,.2f}"
    ratio = "" if math.isnan(row.pinned_per_shown) else f"{row.pinned_per_shown:,.2f}"
    growth, rate = f"{row.growth_mb:+,.2f}", f"{row.growth_mb_per_1000_steps:+,.3f}"
    return label, f"{row.size_mb:,.2f}", ratio, growth, rate, planned, row.device, row.remark
