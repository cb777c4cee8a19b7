"""Print the tables of docs/performance.md: `python markdown.py <file> [row ...]`.

Arguments select rows by name prefix. Without arguments, all rows are printed.
"""

import json
import sys
from pathlib import Path
from typing import Any

HEADINGS = ("Row", "Variant", "Median", "Min", "Max", "n", "Disturbed", "CPU", "x floor", "x Reverie")
HEADINGS += ("Throughput",)
TARGETS = {
    "update_size1m": 3.0,
    "update_size12m": 2.5,
    "update_strided_size1m": 6.0,
    "policy_step_size1m_1": 3.0,
    "policy_step_size1m_8": 3.0,
    "end_to_end": 3.0,
    "memory_size1m": 1.0,
}
"""Minimum ratio of a peer's time or memory to Reverie's, for the same work."""

SAME_WORK = ("sheeprl", "r2dreamer", "dreamerv3")


def main() -> None:
    report = json.loads(Path(sys.argv[1]).read_text())
    machine, rates = report["machine"], report["rates"]
    sentence = [
        f"Measured on {machine['time']} at commit {machine['commit']} ",
        f"on an {machine['gpu'] or machine['cpu']}, with {report['threads']} threads, ",
        f"Python {machine['python']} and torch {machine['torch']}. ",
        f"Other processes used {report['others_cpu']:.2f} CPU-seconds per second. ",
        f"The machine reached {rates['matmul_flops_per_s'] / 1e9:.0f} GFLOP/s in matrix products, ",
        f"{rates['conv_flops_per_s'] / 1e9:.0f} GFLOP/s in convolutions ",
        f"and {rates['copy_bytes_per_s'] / 1e9:.1f} GB/s in copies of 256 MiB.",
    ]
    print("".join(sentence) + "\n")
    print("|".join(["", *(f" {name} " for name in HEADINGS), ""]))
    print("|" + "---|" * len(HEADINGS))
    before = ""
    rows = [row for row in report["rows"] if row["row"].startswith(tuple(sys.argv[2:]) or "")]
    for row in rows:
        cells = cells_of(row)
        name = "" if row["row"] == before else f"`{row['row']}`"
        before = row["row"]
        print("| " + " | ".join([name, *cells]) + " |")
    groups = {name: [row for row in rows if row["row"] == name] for name in TARGETS}
    lines = [target_line(name, TARGETS[name], group) for name, group in groups.items() if group]
    if lines:
        heading = "| Target (x Reverie's value) | Fastest peer | Result | Verdict |\n|---|---|---|---|"
        print("", heading, *lines, sep="\n")


def target_line(name: str, least: float, group: list[dict[str, Any]]) -> str:
    """Return the line of a row's target, relative to the fastest peer with the same work."""
    ours, *others = group
    peers = [row for row in others if row["variant"] in SAME_WORK]
    ratio, peer = min(
        (row["ratio"].get("median", row["median"] / ours["median"]), row["variant"]) for row in peers
    )
    verdict = "met" if ratio >= least else "**not met**"
    return f"| `{name}` at least {least:g} | {peer} | {ratio:.3g} | {verdict} |"


def cells_of(row: dict[str, Any]) -> list[str]:
    """Return the cells of one variant without the row's name."""
    ratio = f"**{row['ratio']['median']:.3g}**" if row["ratio"] else "-"
    return [
        row["variant"],
        f"**{shown(row['median'], row['unit'])}**",
        shown(row["min"], row["unit"]),
        shown(row["max"], row["unit"]),
        f"{row['repetitions']:,}",
        f"{row['disturbed']} of {len(row['blocks'])}" if row["blocks"] else "-",
        shown(row["cpu_s"], "s") if row["cpu_s"] else "-",
        f"{row['median'] / row['floor']['value']:.3g}",
        ratio,
        ", ".join(
            f"{value:,.0f} {name}" if value >= 100 else f"{value:.3g} {name}"
            for name, value in row["derived"].items()
        ),
    ]


def shown(value: float, unit: str) -> str:
    """Return a number with its unit."""
    if unit != "s":
        return f"{value:,.0f} {unit}"
    factor, name = (1.0, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "us")
    return f"{value * factor:.3g} {name}"


if __name__ == "__main__":
    main()
