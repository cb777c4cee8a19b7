"""Print the tables of docs/performance.md from a file of the benchmark: `python markdown.py <file>`."""

import json
import sys
from pathlib import Path
from typing import Any

HEADINGS = ("row", "variant", "median", "min", "max", "n", "disturbed", "CPU", "x floor", "x ours", "that is")


def main() -> None:
    report = json.loads(Path(sys.argv[1]).read_text())
    machine, rates = report["machine"], report["rates"]
    sentence = [
        f"{machine['time']}, commit {machine['commit']}, {machine['gpu'] or machine['cpu']}, ",
        f"{report['threads']} threads, Python {machine['python']}, torch {machine['torch']}; ",
        f"other processes used {report['others_cpu']:.2f} CPU-seconds per second. ",
        f"Matrix products {rates['matmul_flops_per_s'] / 1e9:.0f} GFLOP/s, ",
        f"convolutions {rates['conv_flops_per_s'] / 1e9:.0f} GFLOP/s, ",
        f"copies of 256 MiB {rates['copy_bytes_per_s'] / 1e9:.1f} GB/s.",
    ]
    print("".join(sentence) + "\n")
    print("|".join(["", *(f" {name} " for name in HEADINGS), ""]))
    print("|" + "---|" * len(HEADINGS))
    before = ""
    for row in report["rows"]:
        cells = cells_of(row)
        name = "" if row["row"] == before else f"`{row['row']}`"
        before = row["row"]
        print("| " + " | ".join([name, *cells]) + " |")


def cells_of(row: dict[str, Any]) -> list[str]:
    """The cells of one variant, but for the row's name."""
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
    """A figure with its unit."""
    if unit != "s":
        return f"{value:,.0f} {unit}"
    factor, name = (1.0, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "us")
    return f"{value * factor:.3g} {name}"


if __name__ == "__main__":
    main()
