"""`heapwatch-snapshots`: show growth in CUDA memory snapshots, and the lines that allocated the memory."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import FlagParser, UsageError, exit_on_usage_error
from ..leaks.verdict import MIN_SAMPLES, TrendClass, TrendTest
from ..texts import aligned, count_text, printable, write_whole
from . import series
from .reader import read_summary

JSON_FILE = "analysis.json"
TOP_SITES = 12
_KB, _MB, _GB = 1e3, 1e6, 1e9
_MAX_DIGITS = 18


class Column(NamedTuple):
    """One column of a table: its key in the JSON, and its format."""

    key: str
    heading: str
    divisor: float = 1.0
    form: str = ",.0f"

    def text(self, value: float | str) -> str:
        """Return the value in the table's unit."""
        return value if isinstance(value, str) else format(value / self.divisor, self.form)


COLUMNS = (
    Column("step", "step"),
    Column("active_bytes", "active GB", _GB, ",.2f"),
    Column("small_active_bytes", "small pool GB", _GB, ",.2f"),
    Column("large_active_bytes", "large pool GB", _GB, ",.2f"),
    Column("active_blocks", "blocks"),
    Column("mean_block_bytes", "mean block KB", _KB, ",.1f"),
    Column("pending_free_bytes", "pending free MB", _MB, ",.1f"),
    Column("inactive_split_bytes", "inactive split MB", _MB, ",.1f"),
    Column("rounding_bytes", "rounding MB", _MB, ",.1f"),
    Column("reserved_bytes", "reserved GB", _GB, ",.2f"),
    Column("private_bytes", "private pools GB", _GB, ",.2f"),
)
_SITE = Column("call_site", "call-site")
_CHANGED = (
    Column("change", "change"),
    Column("bytes_more", "MB more", _MB, "+,.1f"),
    Column("bytes_after", "MB after", _MB, ",.1f"),
    Column("new_blocks", "new blocks"),
    Column("freed_blocks", "freed blocks"),
    _SITE,
)
_HELD = (Column("bytes_after", "MB", _MB, ",.1f"), Column("blocks_after", "blocks"), _SITE)
_SITE_KEYS = "change bytes_more bytes_before bytes_after blocks_before blocks_after new_blocks freed_blocks"


@exit_on_usage_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Analyze the given snapshots. Return 1 for growth, else 0, and exit with 2 on bad input."""
    flags = _parser().parse_args(arguments)
    files = series.find_snapshots(flags.snapshots_dir)
    compared = [_find_compared(name, flags.snapshots_dir, files) for name in flags.compare or ()]
    growth = series.measure_growth([read_summary(path, step) for step, path in files.items()])
    document = _document(growth)
    if flags.events_dir:
        joined = series.correlate(growth.summaries, flags.events_dir)
        document["correlations"] = [asdict(correlation) for correlation in joined]
    if compared:
        changes = series.compare(*(read_summary(path, step=0).sites for path in compared))
        before, after = map(str, compared)
        document["compare"] = {"before": before, "after": after} | _shown_sites("call_sites", changes)
    text = json.dumps(document, indent=2)
    if flags.out_dir is not None:
        try:
            flags.out_dir.mkdir(parents=True, exist_ok=True)
            write_whole(flags.out_dir / JSON_FILE, text)
        except OSError as error:
            raise UsageError(f"--out-dir {flags.out_dir} cannot be written: {error.strerror}.") from error
    if flags.format == "json":
        print(text)
    else:
        if flags.out_dir is not None:
            print(f"wrote {flags.out_dir / JSON_FILE}")
        _print(document)
    return int(growth.verdict is TrendClass.growing)


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(
        prog="heapwatch-snapshots",
        description="Show the growth in a series of CUDA memory snapshots, and the lines that allocated it.",
        epilog="Exit code: 1 for growth, 2 for bad input, else 0. Code in a snapshot is never run.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--snapshots-dir", type=Path, required=True, metavar="D", help="folder of snapshot_step_<N>.pickle")
    add("--events-dir", type=Path, metavar="E", help="TensorBoard events of the same run")
    add("--out-dir", type=Path, metavar="O", help=f"folder for {JSON_FILE}")
    add("--compare", nargs=2, metavar=("A", "B"), help="two snapshots: files, names in D, or steps")
    add("--format", choices=("table", "json"), default="table", help="output format")
    return parser


def _find_compared(name: str, folder: Path, files: Mapping[int, Path]) -> Path:
    """Return the file that an argument of --compare refers to: a path, a name in the folder, or a step."""
    is_step = name.isascii() and name.isdigit() and len(name) <= _MAX_DIGITS
    for path in (Path(name), folder / name, files.get(int(name)) if is_step else None):
        # pathlib would raise for a name that is too long.
        if path is not None and os.path.isfile(path):
            return path
    what = f"is not a file, a file in {folder}, or a step of a snapshot there"
    raise UsageError(f"--compare {printable(name)} {what}.")


def _document(growth: series.Growth) -> dict[str, Any]:
    """Return the results as JSON, with exact numbers in bytes. The tables show the same rows."""
    keys = [column.key for column in COLUMNS]
    return {
        "verdict": growth.verdict.value,
        "sentence": _sentence(growth),
        "slope_bytes_per_step": growth.bytes_per_step,
        "slope_blocks_per_step": growth.blocks_per_step,
        "active": _shown_test(growth.active),
        "reserved": _shown_test(growth.reserved),
        "snapshots": [{key: getattr(summary, key) for key in keys} for summary in growth.summaries],
        **_shown_sites("call_sites", growth.sites),
        **_shown_sites("holders", growth.holders),
        "correlations": [],
        "compare": None,
    }


def _shown_test(test: TrendTest) -> dict[str, Any]:
    """Return a test as JSON values. Numbers that need more samples are null, because JSON has no NaN."""
    numbers = {
        "slope_bytes_per_sample": test.slope_bytes_per_sample,
        "slope_interval_bytes_per_sample": test.interval,
        "rise_bytes": test.rise_bytes,
    }
    shown = dict.fromkeys(numbers) if test.samples < MIN_SAMPLES else numbers
    return {"verdict": test.verdict.value, **shown, "samples": test.samples}


def _shown_sites(name: str, changes: Sequence[series.SiteChange]) -> dict[str, Any]:
    """Return the call-sites to show, under a name, and their total number."""
    shown = [
        {key: getattr(change, key) for key in _SITE_KEYS.split()}
        | {"call_site": series.site_label(change.stack), "stack": series.frame_lines(change.stack)}
        for change in top_sites(changes)
    ]
    return {name: shown, f"{name}_in_all": len(changes)}


def top_sites(changes: Sequence[series.SiteChange]) -> list[series.SiteChange]:
    """Return the call-sites that changed most in either direction, largest growth first."""
    largest = sorted(changes, key=lambda change: abs(change.bytes_more), reverse=True)[:TOP_SITES]
    return sorted(largest, key=lambda change: change.bytes_more, reverse=True)


def _sentence(growth: series.Growth) -> str:
    """Return the verdict and its evidence in one or two sentences."""
    first, last, count = growth.summaries[0], growth.summaries[-1], len(growth.summaries)
    if count == 1:
        return f"{growth.verdict.value}: one snapshot, of step {last.step:,}; a verdict needs {MIN_SAMPLES}."
    slope = f"{growth.bytes_per_step / _KB:,.1f} KB and {growth.blocks_per_step:,.1f} blocks per step"
    span = f"over {count_text(count, 'snapshot')} from step {first.step:,} to {last.step:,}"
    sentence = f"{growth.verdict.value}: active memory changes by {slope}"
    if count < MIN_SAMPLES:
        return f"{sentence} {span}; a verdict needs {MIN_SAMPLES}."
    sentence += f", {span}."
    if growth.verdict is TrendClass.growing and growth.sites and growth.sites[0].bytes_more > 0:
        share = growth.sites[0].bytes_more / sum(max(site.bytes_more, 0) for site in growth.sites)
        sentence += f" {share:.0%} of the growth comes from {series.site_label(growth.sites[0].stack)}."
    if growth.verdict is TrendClass.retention:
        rise = growth.reserved.rise_bytes / _MB
        sentence += f" Reserved memory rises by {rise:,.1f} MB: fragmentation, not a leak."
    return sentence


def _print(document: Mapping[str, Any]) -> None:
    """Print the tables, and the verdict last."""
    _print_table(COLUMNS, document["snapshots"])
    first, last = (document["snapshots"][place]["step"] for place in (0, -1))
    if first != last:
        title = f"Growth by call-site from step {first:,} to step {last:,}"
        _print_sites(title, _CHANGED, document, "call_sites")
    if comparison := document["compare"]:
        title = f"Growth from {comparison['before']} to {comparison['after']}"
        _print_sites(title, _CHANGED, comparison, "call_sites")
    _print_sites(f"Memory in use by call-site, step {last:,}", _HELD, document, "holders")
    for joined in document["correlations"]:
        r = "not defined" if joined["pearson_r"] is None else f"{joined['pearson_r']:.4f}"
        differs = f"largest difference {joined['largest_difference_gb']:.3f} GB"
        apart = f"joined within {count_text(joined['largest_distance_steps'], 'step')}"
        print(f"{joined['tag']}: Pearson r {r}, {differs}, {apart}")
    print(document["sentence"])


def _print_sites(title: str, columns: Sequence[Column], found: Mapping[str, Any], name: str) -> None:
    """Print the call-sites that changed most."""
    print(f"\n{printable(title, None)}")
    if not found[name]:
        print("no call-site")
        return
    _print_table(columns, found[name])
    if num_more := found[f"{name}_in_all"] - len(found[name]):
        print(f"and {num_more:,} more")
    print()


def _print_table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print aligned columns: numbers to the right, and call-sites, in the last column, to the left."""
    lines = [[column.heading for column in columns]]
    lines += [[printable(column.text(row[column.key]), None) for column in columns] for row in rows]
    print(*aligned(lines, [_SITE.heading]), sep="\n")
