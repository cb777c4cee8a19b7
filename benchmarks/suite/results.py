"""What one variant of one row came out as, and the table of them all."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.suite.timing import Block, counted, pair_ratios


@dataclass(frozen=True, slots=True)
class Floor:
    """The least that the row could be, from a limit that was measured in the same run."""

    value: float
    """In the unit of the row."""

    of: str
    """What was counted, and by which rate it was divided."""


@dataclass(frozen=True, slots=True)
class Result:
    """One variant of one row; less is better in every unit."""

    row: str
    variant: str
    unit: str
    """`s` for one call, or `MB` of 1e6 bytes."""

    median: float
    min: float
    max: float
    repetitions: int
    """Calls behind the three figures."""

    threads: int
    floor: Floor
    ratio: dict[str, float] = field(default_factory=dict)
    """This variant over the first one of the row, round by round: median, min, max."""

    cpu_s: float = 0.0
    """CPU-seconds of a call over all threads, the median of all blocks; 0 where blocks are too short."""

    disturbed: int = 0
    """Blocks left out, or with fewer than three clean ones kept, because others used the machine."""

    derived: dict[str, float] = field(default_factory=dict)
    """Rates and sizes that follow, by name and unit."""

    facts: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    """What differs from the work of the first variant."""

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
        blocks: What was measured.
        threads: CPU threads it ran with.
        floor: Its limit, in seconds.
        base: The blocks of the row's first variant; None if this is it.
        derived: Rates per call: each is divided by the median of the seconds.
        facts: What the variant says about itself.
        note: What differs.
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
    """Return the results as lines of text, a row's name where it begins."""
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
    """Return a figure with its unit, seconds as s, ms or us."""
    if unit != "s":
        return f"{value:,.1f} {unit}"
    for name, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1.0:
            return f"{value * factor:.3g} {name}"
    return f"{value * 1e6:.3g} us"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
