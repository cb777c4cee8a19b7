"""Print the tables of docs/results/README.md from the output of `table.py`: show.py <table.jsonl>."""

import json
import sys
from pathlib import Path
from typing import Any


def clean_rows(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table rows for the clean programs."""
    lines = [
        "| Program | Verdict | Optimizer steps | Seconds | CPU seconds with and without the watch "
        "| CPU seconds of the watch |"
    ]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        cpu = f"{row['watched']['cpu_seconds']}, {row['plain']['cpu_seconds']}"
        share = f"{row['own_seconds']:.1f}"
        cells = (row["version"], row["verdict"], f"{row['steps']:,}", f"{row['seconds']:.0f}", cpu, share)
        lines.append(f"| `{row['program']}`: " + " | ".join(map(str, cells)) + " |")
    return lines


def leak_rows(rows: list[dict[str, Any]]) -> list[str]:
    """Return a row per leak, with the seconds until each program's report, or the wrong verdict."""
    programs = list(dict.fromkeys(row["program"] for row in rows))
    lines = [f"| Leak | {' | '.join(programs)} |", "|---" * (len(programs) + 1) + "|"]
    for leak in dict.fromkeys(row["leak"] for row in rows):
        cells = []
        for program in programs:
            found = [row for row in rows if (row["program"], row["leak"]) == (program, leak)]
            cells.append(_cell(found[0]) if found else "-")
        lines.append(f"| {leak} | {' | '.join(cells)} |")
    return lines


def _cell(row: dict[str, Any]) -> str:
    if not row["right"]:
        return f"**{row['verdict']}, not named**" if row["verdict"] == "leak" else f"**{row['verdict']}**"
    return f"{row['seconds_until']:.0f} s" + ("" if row.get("named_first", True) else ", not named first")


if __name__ == "__main__":
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    print("\n".join(clean_rows([line for line in lines if line["leak"] == "none"])), end="\n\n")
    print("\n".join(leak_rows([line for line in lines if line["leak"] != "none"])))
