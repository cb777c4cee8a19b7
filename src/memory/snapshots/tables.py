"""The tables of call-sites, as terminal and page show them alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .analysis import TOP_SITES, Analysis, top_sites
from .compare import SiteChange
from .sites import frame_lines, site_label

_MB = 1e6
_CHANGE_HEADINGS = ("change", "MB more", "MB after", "new blocks", "freed blocks", "call-site")
_HELD_HEADINGS = ("MB", "blocks", "call-site")


@dataclass(frozen=True, slots=True)
class SiteTable:
    """A table of call-sites; its texts come out of files, and whoever shows them escapes them."""

    title: str
    span: str
    """Which snapshots it is about."""

    headings: tuple[str, ...]
    rows: list[list[str]]
    """Cells in the order of `headings`; the last one names the call-site."""

    stacks: list[list[str]]
    """The whole stack of each row, innermost frame first."""

    num_left_out: int
    """Call-sites beyond those shown."""


def site_tables(analysis: Analysis) -> list[SiteTable]:
    """Return what grew, what changed between the snapshots to compare, and what the last snapshot holds."""
    growth, comparison = analysis.growth, analysis.comparison
    first, last = growth.summaries[0].step, growth.summaries[-1].step
    tables = []
    if first != last:
        span = f"step {last:,} against step {first:,}"
        tables.append(_table("Growth by call-site", span, growth.sites, _CHANGE_HEADINGS, _change_row))
    if comparison is not None:
        span = f"{comparison.after} against {comparison.before}"
        tables.append(_table("Comparison", span, comparison.changes, _CHANGE_HEADINGS, _change_row))
    tables.append(_table("What is held", f"step {last:,}", growth.holders, _HELD_HEADINGS, _held_row))
    return tables


def _table(
    title: str,
    span: str,
    sites: Sequence[SiteChange],
    headings: tuple[str, ...],
    row: Callable[[SiteChange], list[str]],
) -> SiteTable:
    shown = top_sites(sites)
    stacks = [frame_lines(site.stack) for site in shown]
    left_out = max(0, len(sites) - TOP_SITES)
    return SiteTable(title, span, headings, [row(site) for site in shown], stacks, left_out)


def _change_row(change: SiteChange) -> list[str]:
    return [
        change.change.value,
        f"{change.bytes_more / _MB:+,.1f}",
        f"{change.bytes_after / _MB:,.1f}",
        f"{change.new_blocks:,}",
        f"{change.freed_blocks:,}",
        site_label(change.stack),
    ]


def _held_row(site: SiteChange) -> list[str]:
    return [f"{site.bytes_after / _MB:,.1f}", f"{site.blocks_after:,}", site_label(site.stack)]
