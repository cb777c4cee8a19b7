"""`reverie-analyze-snapshots`: what grows in a folder of CUDA memory snapshots, and where it comes from."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..memory.leaks.verdict import TrendClass
from ..memory.snapshots.analysis import (
    COLUMNS,
    Analysis,
    Comparison,
    as_json,
    correlation_sentence,
    summary_row,
    verdict_sentence,
)
from ..memory.snapshots.compare import compare
from ..memory.snapshots.correlate import correlate
from ..memory.snapshots.growth import find_snapshots, measure_growth, read_series
from ..memory.snapshots.page import render
from ..memory.snapshots.schema import read_snapshot
from ..memory.snapshots.sites import folded_stacks
from ..memory.snapshots.summary import Summary, summarize
from ..memory.snapshots.tables import SiteTable, site_tables
from ..utils.errors import FlagParser, UserError, exit_on_user_error, printable

_PAGE = "report.html"
_FOLDED = "call_sites.folded"
_MOST_DIGITS = 18
_PIPE_WIDTH = 140  # letters in a line where there is no terminal


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Analyse what the command line names; return 1 for growth, else 0.

    Raises:
        SystemExit: With code 2 after bad input.
    """
    flags = _parser().parse_args(arguments)
    analysis = _analyze(flags)
    if flags.format == "json":
        print(json.dumps(as_json(analysis), indent=2))
    else:
        _print(analysis, flags.out_dir)
    return int(analysis.growth.verdict is TrendClass.growing)


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
    parser.add_argument("--out-dir", type=Path, metavar="O", help=f"gets {_PAGE}, pictures and {_FOLDED}")
    parser.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="two snapshots: files, names in D, or steps"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what is printed")
    return parser


def _analyze(flags: argparse.Namespace) -> Analysis:
    """Read everything, and write --out-dir last: bad input then leaves nothing behind."""
    files = find_snapshots(flags.snapshots_dir)
    compared = [_find_compared(name, flags.snapshots_dir, files) for name in flags.compare or ()]
    if flags.out_dir is not None:
        _check_writable(flags.out_dir)
    summaries = read_series(files)
    analysis = Analysis(
        measure_growth(summaries),
        tuple(correlate(summaries, flags.events_dir)) if flags.events_dir is not None else (),
        _compare_files(compared, files, summaries) if compared else None,
    )
    if flags.out_dir is not None:
        _write(flags.out_dir, _outputs(analysis, str(flags.snapshots_dir)))
    return analysis


def _find_compared(name: str, folder: Path, files: Mapping[int, Path]) -> Path:
    """Return the file that an argument of --compare means: a path, a name in the folder, or a step."""
    is_step = name.isascii() and name.isdigit() and len(name) <= _MOST_DIGITS
    for path in (Path(name), folder / name, files.get(int(name)) if is_step else None):
        if path is not None and os.path.isfile(path):  # of a name that is too long pathlib would raise
            return path
    raise UserError(
        f"--compare {printable(name)} is no file, no file in {folder}, and no step of a snapshot there."
    )


def _compare_files(compared: list[Path], files: Mapping[int, Path], summaries: list[Summary]) -> Comparison:
    """Compare two files; those of the series are not read again."""
    known = {path: summary for path, summary in zip(files.values(), summaries, strict=True)}
    before, after = (
        known[path] if path in known else summarize(read_snapshot(path), step=0) for path in compared
    )
    return Comparison(str(compared[0]), str(compared[1]), tuple(compare(before.sites, after.sites)))


def _outputs(analysis: Analysis, title: str) -> dict[str, bytes]:
    """Return the files of --out-dir by name."""
    from ..memory.snapshots.plots import (
        draw,  # here: matplotlib takes 0.5 s to import, and a table needs none of it
    )

    pictures = draw(analysis)
    return {
        **pictures,
        _PAGE: render(analysis, pictures, title).encode(),
        _FOLDED: folded_stacks(analysis.growth.summaries[-1].sites).encode(),
    }


def _check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made or written, before the work and without making it."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    effective = os.access in os.supports_effective_ids
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK, effective_ids=effective)):
        raise UserError(
            f"--out-dir {folder} cannot be written: {existing} is no folder that you may write to."
        )


def _write(folder: Path, outputs: Mapping[str, bytes]) -> None:
    """Write all files under other names first, so that a full disk leaves no half of them."""
    unfinished = {folder / f".{name}.part": folder / name for name in outputs}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in zip(unfinished, outputs.values(), strict=True):
            path.write_bytes(content)
        for path, final in unfinished.items():
            path.replace(final)
    except OSError as error:
        for path in unfinished:
            path.unlink(missing_ok=True)
        raise UserError(f"--out-dir {folder} cannot be written: {error.strerror}.") from error


def _print(analysis: Analysis, out_dir: Path | None) -> None:
    """Print the tables, then the verdict, where the eye ends."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    table = Table(*(column.heading for column in COLUMNS), box=None, header_style="bold")
    for column in table.columns:
        column.justify = "right"
    for summary in analysis.growth.summaries:
        table.add_row(*summary_row(summary))
    console.print(table)
    for sites in site_tables(analysis):
        _print_sites(console, sites)
    for correlation in analysis.correlations:
        console.print(Text(correlation_sentence(correlation)), soft_wrap=True)
    if out_dir is not None:
        console.print(Text(f"wrote {out_dir / _PAGE}"), soft_wrap=True)
    console.print(Text(verdict_sentence(analysis.growth), style="bold"), soft_wrap=True)


def _print_sites(console: Console, sites: SiteTable) -> None:
    """Print a table of call-sites."""
    console.print(Text(f"\n{sites.title}, {sites.span}", style="bold"), soft_wrap=True)
    if not sites.rows:
        console.print("no call-site")
        return
    table = Table(*sites.headings, box=None, header_style="bold")
    for column in table.columns[:-1]:
        column.justify = "right"
    for row in sites.rows:
        table.add_row(*map(Text, row))
    console.print(table)
    if sites.num_left_out:
        console.print(f"and {sites.num_left_out:,} more")
    console.print()
