"""`reverie-analyze-snapshots`: show what grows in CUDA memory snapshots, and which lines allocated it."""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..memory.leaks.verdict import TrendClass
from ..memory.snapshots.correlate import Correlation, correlate
from ..memory.snapshots.growth import Growth, find_snapshots, measure_growth, read_series
from ..memory.snapshots.report import (
    COLUMNS,
    TOP_SITES,
    Comparison,
    as_json,
    correlation_sentence,
    top_sites,
    verdict_sentence,
)
from ..memory.snapshots.sites import SiteChange, compare, site_label
from ..memory.snapshots.summary import read_summary
from ..utils.errors import FlagParser, UserError, exit_on_user_error, printable

JSON_FILE = "analysis.json"
_MB = 1e6
_MAX_DIGITS = 18
_PIPE_WIDTH = 140  # letters in a line where there is no terminal

_SiteColumns = Mapping[str, Callable[[SiteChange], str]]
"""Columns of a table of call-sites: the heading, and the text of a cell."""

_CHANGED: _SiteColumns = {
    "change": lambda site: site.change,
    "MB more": lambda site: f"{site.bytes_more / _MB:+,.1f}",
    "MB after": lambda site: f"{site.bytes_after / _MB:,.1f}",
    "new blocks": lambda site: f"{site.new_blocks:,}",
    "freed blocks": lambda site: f"{site.freed_blocks:,}",
    "call-site": lambda site: site_label(site.stack),
}
_HELD: _SiteColumns = {
    "MB": lambda site: f"{site.bytes_after / _MB:,.1f}",
    "blocks": lambda site: f"{site.blocks_after:,}",
    "call-site": lambda site: site_label(site.stack),
}


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Analyse what the command line names; return 1 for growth, else 0.

    Raises:
        SystemExit: With code 2 after bad input.
    """
    flags = _parser().parse_args(arguments)
    files = find_snapshots(flags.snapshots_dir)
    compared = [_find_compared(name, flags.snapshots_dir, files) for name in flags.compare or ()]
    growth = measure_growth(read_series(files))
    correlations = correlate(growth.summaries, flags.events_dir) if flags.events_dir else []
    comparison = _compare_files(*compared) if compared else None
    document = as_json(growth, correlations, comparison)
    if flags.out_dir is not None:
        _write(flags.out_dir, document)
    if flags.format == "json":
        print(json.dumps(document, indent=2))
    else:
        if flags.out_dir is not None:
            print(f"wrote {flags.out_dir / JSON_FILE}")
        _print(growth, correlations, comparison)
    return int(growth.verdict is TrendClass.growing)


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(
        description="Show what grows in a series of CUDA memory snapshots, and which lines allocated it.",
        epilog="Exit code: 1 for growth, 2 for bad input, else 0. Nothing in a snapshot is run.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--snapshots-dir", type=Path, required=True, metavar="D", help="holds snapshot_step_<N>.pickle"
    )
    parser.add_argument("--events-dir", type=Path, metavar="E", help="TensorBoard events of the same run")
    parser.add_argument("--out-dir", type=Path, metavar="O", help=f"gets {JSON_FILE}")
    parser.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="two snapshots: files, names in D, or steps"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what is printed")
    return parser


def _find_compared(name: str, folder: Path, files: Mapping[int, Path]) -> Path:
    """Return the file that an argument of --compare means: a path, a name in the folder, or a step."""
    is_step = name.isascii() and name.isdigit() and len(name) <= _MAX_DIGITS
    for path in (Path(name), folder / name, files.get(int(name)) if is_step else None):
        if path is not None and os.path.isfile(path):  # of a name that is too long pathlib would raise
            return path
    raise UserError(
        f"--compare {printable(name)} is no file, no file in {folder}, and no step of a snapshot there."
    )


def _compare_files(before: Path, after: Path) -> Comparison:
    sites = (read_summary(path, step=0).sites for path in (before, after))
    return Comparison(str(before), str(after), compare(*sites))


def _write(folder: Path, document: Mapping[str, Any]) -> None:
    """Write the JSON whole or not at all."""
    path = folder / JSON_FILE
    unfinished = path.with_suffix(".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(document, indent=2))
        unfinished.replace(path)
    except OSError as error:
        raise UserError(f"--out-dir {folder} cannot be written: {error.strerror}.") from error


def _print(growth: Growth, correlations: Sequence[Correlation], comparison: Comparison | None) -> None:
    """Print the tables, then the verdict, where the eye ends."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    table = Table(*(column.heading for column in COLUMNS), box=None, header_style="bold")
    for column in table.columns:
        column.justify = "right"
    for summary in growth.summaries:
        table.add_row(*(column.text(getattr(summary, column.key)) for column in COLUMNS))
    console.print(table)
    first, last = growth.summaries[0].step, growth.summaries[-1].step
    if first != last:
        _print_sites(
            console, f"Growth by call-site, step {last:,} against step {first:,}", growth.sites, _CHANGED
        )
    if comparison is not None:
        title = f"Comparison, {comparison.after} against {comparison.before}"
        _print_sites(console, title, comparison.changes, _CHANGED)
    _print_sites(console, f"What is held, step {last:,}", growth.holders, _HELD)
    for correlation in correlations:
        console.print(Text(correlation_sentence(correlation)), soft_wrap=True)
    console.print(Text(verdict_sentence(growth), style="bold"), soft_wrap=True)


def _print_sites(console: Console, title: str, sites: Sequence[SiteChange], columns: _SiteColumns) -> None:
    """Print a table of the call-sites that changed most; its last column is text."""
    console.print(Text(f"\n{title}", style="bold"), soft_wrap=True)
    if not sites:
        console.print("no call-site")
        return
    table = Table(*columns, box=None, header_style="bold")
    for column in table.columns[:-1]:
        column.justify = "right"
    for site in top_sites(sites):
        table.add_row(*(Text(text(site)) for text in columns.values()))
    console.print(table)
    if len(sites) > TOP_SITES:
        console.print(f"and {len(sites) - TOP_SITES:,} more")
    console.print()
