"""Print the table of a race from the output of `benchmarks/race.py`: `python race_table.py [folder]`."""

import json
import sys
from pathlib import Path

ROWS = Path(__file__).parents[1] / "race"
AFTER = "after_{}_imagined_steps"


def cells(row: dict) -> list[str]:
    """Return the cells of a line. A comma separates the numbers after 0 and after 5 imagined steps."""
    probes = [row["probe"][AFTER.format(steps)] for steps in (0, 5)]
    r2 = [[f"{probe['r2'][name]:.2f}" for probe in probes] for name in ("ball_x", "ball_y")]
    drawn = [f"{100 * probe['drawn']:.0f} %" for probe in probes if probe.get("drawn") is not None]
    auc = [[probe["auc"][name] for probe in probes] for name in ("won_above_none", "none_above_lost")]
    return [
        f"`{row['line']}`",
        f"{row['updates']:,}",
        *map(", ".join, (*r2, drawn)),
        *(", ".join("-" if each is None else f"{each:.2f}" for each in pair) for pair in auc),
        f"{row['policy_entropy']:.2f}" if "policy_entropy" in row else "-",
        f"{sum(row['last_returns']) / len(row['last_returns']):.1f}",
        "{won}, {lost}".format(**probes[0]["points"]),
    ]


def main() -> None:
    folder = Path(sys.argv[1]) if sys.argv[1:] else ROWS
    print("| line | updates | R² of ball x | of ball y | ball drawn ", end="")
    print("| won over none | none over lost | entropy | return | points won, lost |")
    print("|---" * 10 + "|")
    for path in sorted(folder.glob("*.json")):
        print(f"| {' | '.join(cells(json.loads(path.read_text())))} |")


if __name__ == "__main__":
    main()
