"""Report what the analyser found: the columns, the sentences and the JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..leaks.verdict import MIN_SAMPLES, TrendClass, TrendTest
from .correlate import Correlation
from .growth import Growth
from .sites import SiteChange, frame_lines, site_label
from .summary import Summary

TOP_SITES = 12
_KB, _MB, _GB = 1e3, 1e6, 1e9
_SITE_KEYS = (
    "change",
    *("bytes_more", "bytes_before", "bytes_after"),
    *("blocks_before", "blocks_after", "new_blocks", "freed_blocks"),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two snapshots that the user asked to compare."""

    before: str
    after: str
    changes: Sequence[SiteChange]


@dataclass(frozen=True, slots=True)
class Column:
    """One quantity of a snapshot: its attribute of `Summary`, and how a table shows it."""

    key: str
    heading: str
    divisor: float = 1.0
    digits: int = 0

    def text(self, value: float) -> str:
        """Return the value in the table's unit."""
        return f"{value / self.divisor:,.{self.digits}f}"


COLUMNS = (
    Column("step", "step"),
    Column("active_bytes", "active GB", _GB, 2),
    Column("small_active_bytes", "small pool GB", _GB, 2),
    Column("large_active_bytes", "large pool GB", _GB, 2),
    Column("active_blocks", "blocks"),
    Column("mean_block_bytes", "mean block KB", _KB, 1),
    Column("pending_free_bytes", "pending free MB", _MB, 1),
    Column("inactive_split_bytes", "inactive split MB", _MB, 1),
    Column("rounding_bytes", "rounding MB", _MB, 1),
    Column("reserved_bytes", "reserved GB", _GB, 2),
    Column("private_bytes", "private pools GB", _GB, 2),
)


def top_sites(changes: Sequence[SiteChange]) -> list[SiteChange]:
    """Return the call-sites to show: those that changed most either way, what grew most first."""
    largest = sorted(changes, key=lambda change: abs(change.bytes_more), reverse=True)[:TOP_SITES]
    return sorted(largest, key=lambda change: change.bytes_more, reverse=True)


def verdict_sentence(growth: Growth) -> str:
    """Return the verdict and what it rests on, in one or two sentences."""
    first, last, count = growth.summaries[0], growth.summaries[-1], len(growth.summaries)
    if count == 1:
        return f"{growth.verdict.value}: one snapshot, of step {last.step:,}; a verdict needs {MIN_SAMPLES}."
    slope = f"{growth.bytes_per_step / _KB:,.1f} KB and {growth.blocks_per_step:,.1f} blocks per step"
    span = f"over {count} snapshots from step {first.step:,} to {last.step:,}"
    sentence = f"{growth.verdict.value}: active memory changes by {slope}"
    if count < MIN_SAMPLES:
        return f"{sentence} {span}; a verdict needs {MIN_SAMPLES}."
    sentence += f", {span}."
    if growth.verdict is TrendClass.growing and growth.sites and growth.sites[0].bytes_more > 0:
        share = growth.sites[0].bytes_more / sum(max(site.bytes_more, 0) for site in growth.sites)
        sentence += f" {share:.0%} of the growth comes from {site_label(growth.sites[0].stack)}."
    if growth.verdict is TrendClass.retention:
        rise = growth.reserved.rise_bytes / _MB
        sentence += f" What is reserved for it rises by {rise:,.1f} MB: fragmentation, not a leak."
    return sentence


def correlation_sentence(correlation: Correlation) -> str:
    """Return how well a logged scalar agrees with the snapshots."""
    r = "not defined" if correlation.pearson_r is None else f"{correlation.pearson_r:.4f}"
    return (
        f"{correlation.tag}: Pearson r {r}, largest difference {correlation.largest_difference_gb:.3f} GB, "
        f"joined within {correlation.largest_distance_steps:,} steps"
    )


def as_json(
    growth: Growth, correlations: Sequence[Correlation] = (), comparison: Comparison | None = None
) -> dict[str, Any]:
    """Return what was found as JSON has it: numbers whole and in bytes, the rows those of the table."""
    return {
        "verdict": growth.verdict.value,
        "sentence": verdict_sentence(growth),
        "slope_bytes_per_step": growth.bytes_per_step,
        "slope_blocks_per_step": growth.blocks_per_step,
        "active": _judgement(growth.active),
        "reserved": _judgement(growth.reserved),
        "snapshots": [_numbers(summary) for summary in growth.summaries],
        **_sites("call_sites", growth.sites),
        **_sites("holders", growth.holders),
        "correlations": [asdict(correlation) for correlation in correlations],
        "compare": comparison
        and {
            "before": comparison.before,
            "after": comparison.after,
            **_sites("call_sites", comparison.changes),
        },
    }


def _numbers(summary: Summary) -> dict[str, float]:
    return {column.key: getattr(summary, column.key) for column in COLUMNS}


def _judgement(judgement: TrendTest) -> dict[str, Any]:
    """Return a judgement; JSON has no NaN, so what too few samples leave open is null."""
    is_open = judgement.samples < MIN_SAMPLES
    return {
        "verdict": judgement.verdict.value,
        "slope_bytes_per_sample": None if is_open else judgement.slope_bytes_per_sample,
        "slope_interval_bytes_per_sample": None if is_open else judgement.interval,
        "rise_bytes": None if is_open else judgement.rise_bytes,
        "samples": judgement.samples,
    }


def _sites(name: str, changes: Sequence[SiteChange]) -> dict[str, Any]:
    """Return the call-sites to show under a name, and their number in all."""
    shown = [
        {key: getattr(change, key) for key in _SITE_KEYS}
        | {"call_site": site_label(change.stack), "stack": frame_lines(change.stack)}
        for change in top_sites(changes)
    ]
    return {name: shown, f"{name}_in_all": len(changes)}
