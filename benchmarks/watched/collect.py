"""Collect the rows of `third_party.py` in a folder of the documentation, and print them as Markdown tables.

    python benchmarks/watched/collect.py <folder of the leaks> <folder of clean programs>... --out <folder>

`--out` receives `leaks.jsonl` in the order of `injections.py`, `held_out.py` and `held_out_again.py`,
`clean.jsonl`, `versions.txt`, and `output.txt` with all lines that heapwatch printed.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from held_out import HELD_OUT
from held_out_again import HELD_OUT_AGAIN
from injections import INJECTIONS

LATE_SECONDS = 90
_PRINTED = re.compile(r"^heapwatch: .*\n(?:  .*\n)*", re.MULTILINE)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def printed(row: dict[str, Any], title: str, folder: Path) -> str:
    """Return what heapwatch printed in a run."""
    run = folder / f"{row['program']}_{title.replace(' ', '_')}"
    lines = "".join(_PRINTED.findall((run / "watched.log").read_text()))
    return f"== {row['program']}: {title}\n{lines.replace(str(run), '<folder>')}"


def leak_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a Markdown table of the leaks, and a summary."""
    yield "| Program | Leak | Owner | File and line | Pattern | Seconds |\n|---|---|---|---|---|---|"
    for row in rows:
        marks = ["yes" if right else "**no**" for right in row["right"].values()]
        late = "-" if row["late_seconds"] is None else f"{row['late_seconds']:.0f}"
        yield f"| `{row['program']}` | {row['name']} | {' | '.join(marks)} | {late} |"
    right = [row for row in rows if all(row["right"].values())]
    soon = [row for row in right if (row["late_seconds"] or 0) <= LATE_SECONDS]
    loads = sorted(row["load"] for row in rows)
    counts = {key: sum(row["right"][key] for row in rows) for key in ("owner", "file", "pattern")}
    yield f"\n{counts} of {len(rows)}, all {len(right)}, of them within {LATE_SECONDS} s {len(soon)}"
    yield f"load: {loads[0]} to {loads[-1]}\n"


def clean_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a Markdown table of the clean programs."""
    yield "| Program | Verdict | Seconds | Samples | Alarms | Load |\n|---|---|---|---|---|---|"
    for row in rows:
        numbers = f"{row['seconds']:.0f} | {row['samples']} | {len(row['alarms'])} | {row['load']}"
        yield f"| `{row['program']}` | {row['verdict']} | {numbers} |"


def main() -> None:
    """Write the files and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("leaks", type=Path)
    parser.add_argument("clean", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    every = (*INJECTIONS, *HELD_OUT, *HELD_OUT_AGAIN)
    order = {(each.program, each.name): number for number, each in enumerate(every)}
    leaks = sorted(rows_of(asked.leaks / "leaks.jsonl"), key=lambda row: order[row["program"], row["name"]])
    clean = [(row, folder) for folder in asked.clean for row in rows_of(folder / "clean.jsonl")]
    all_rows = [*leaks, *(row for row, _ in clean)]
    versions = sorted({f"{name}=={found}" for row in all_rows for name, found in row["versions"].items()})
    texts = [printed(row, row["name"], asked.leaks) for row in leaks]
    texts += [printed(row, "clean", folder) for row, folder in clean]
    for name, rows in (("leaks", leaks), ("clean", [row for row, _ in clean])):
        (asked.out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (asked.out / "versions.txt").write_text("\n".join([*versions, "torch==2.13.0", ""]))
    (asked.out / "output.txt").write_text("\n".join(texts))
    print(*leak_table(leaks), *clean_table([row for row, _ in clean]), sep="\n")


if __name__ == "__main__":
    main()
