"""Results of the variants of each row, and their table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.suite.timing import Block, counted, pair_ratios


@dataclass(frozen=True, slots=True)
class Floor:
    """Lower bound for a row, from a limit measured in the same run."""

    value: float
    """Value in the unit of the row."""

    of: str
    """The amount of work and the rate that it was divided by, as text."""


@dataclass(frozen=True, slots=True)
class Result:
    """One variant of one row. Lower is better in every unit."""

    row: str
    variant: str
    unit: str
    """`s` for one call, or `MB` of 1e6 bytes."""

    median: float
    min: float
    max: float
    repetitions: int
    """Number of calls behind the median, minimum and maximum."""

    threads: int
    floor: Floor
    ratio: dict[str, float] = field(default_factory=dict)
    """Median, minimum and maximum over rounds of this variant's ratio to the row's first variant."""

    cpu_s: float = 0.0
    """Median CPU-seconds per call over all threads, or 0 if blocks are too short."""

    disturbed: int = 0
    """Number of disturbed blocks. They are left out unless fewer than three blocks are clean."""

    derived: dict[str, float] = field(default_factory=dict)
    """Derived rates and sizes, by name and unit."""

    facts: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    """How the work differs from the first variant's."""

    blocks: list[dict[str, Any]] = field(default_factory=list)


def timed_result(
    row: str,
    variant: str,
    blocks: Sequence[Block],
    *,
    threads: int,
    floor: Floor,
    base: Sequence[Block] | None = None,
    derived: dict[str, float] | None = None,
    facts: dict[str, Any] | None = None,
    note: str = "",
) -> Result:
    """Return the result of timed blocks.

    Args:
        row: Name of the row.
        variant: Name of the variant.
        blocks: The measured blocks.
        threads: Number of CPU threads.
        floor: Lower bound, in seconds.
        base: Blocks of the row's first variant, or `None` for the first variant itself.
        derived: Amounts per call. Each is divided by the median number of seconds.
        facts: Facts reported by the variant.
        note: How the variant's work differs from that of the first one.
    """
    calls = [seconds for block in counted(blocks) for seconds in block.seconds]
    middle = median(calls)
    ratios = pair_ratios(blocks, base) if base is not None else []
    spread = {"median": median(ratios), "min": min(ratios), "max": max(ratios)} if ratios else {}
    return Result(
        row=row,
        variant=variant,
        unit="s",
        median=middle,
        min=min(calls),
        max=max(calls),
        repetitions=len(calls),
        threads=threads,
        floor=floor,
        ratio=spread,
        cpu_s=median(block.own_cpu for block in blocks),
        disturbed=sum(block.is_disturbed for block in blocks),
        derived={name: amount / middle for name, amount in (derived or {}).items()},
        facts=dict(facts or {}),
        note=note,
        blocks=[block.as_json() for block in blocks],
    )


HEADINGS = tuple("row,variant,median,min,max,n,disturbed,CPU,floor,x floor,x first,also".split(","))


def table(results: Sequence[Result]) -> str:
    """Return the results as lines of text, with each row's name on its first line."""
    rows = [HEADINGS, *(_cells(result) for result in results)]
    widths = [max(len(cells[i]) for cells in rows) for i in range(len(HEADINGS) - 1)]
    lines, before = [], ""
    for cells in rows:
        shown = ("" if cells[0] == before else cells[0], *cells[1:])
        before = cells[0]
        left = [text.ljust(width) for text, width in zip(shown[:2], widths[:2], strict=True)]
        right = [text.rjust(width) for text, width in zip(shown[2:-1], widths[2:], strict=True)]
        lines.append("  ".join([*left, *right, shown[-1]]).rstrip())
    return "\n".join(lines)


def _cells(result: Result) -> tuple[str, ...]:
    also = [f"{_short(value)} {name}" for name, value in result.derived.items()]
    if result.note:
        also.append(f"({result.note})")
    return (
        result.row,
        result.variant,
        *(_shown(value, result.unit) for value in (result.median, result.min, result.max)),
        str(result.repetitions),
        f"{result.disturbed} of {len(result.blocks)}" if result.blocks else "-",
        _shown(result.cpu_s, "s") if result.cpu_s else "-",
        _shown(result.floor.value, result.unit),
        _short(result.median / result.floor.value),
        _short(result.ratio["median"]) if result.ratio else "-",
        ", ".join(also),
    )


def _shown(value: float, unit: str) -> str:
    """Return a number with its unit. Seconds become s, ms or us."""
    if unit != "s":
        return f"{value:,.1f} {unit}"
    for name, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1.0:
            return f"{value * factor:.3g} {name}"
    return f"{value * 1e6:.3g} us"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
