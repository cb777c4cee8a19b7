"""`python -m tests.faults.table <folder>`: run the zoo and write its table, leak_zoo.md and leak_zoo.json."""

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from . import zoo

FIRST_UPDATE = 40


def main(folder: Path) -> None:
    """Run all faults and decoys, one after another."""
    rows, outcomes = [], {}
    with zoo.separate_process() as outcome_of, tempfile.TemporaryDirectory() as runs:
        for name in (*zoo.LEAKS, *zoo.DECOYS):
            outcome = outcomes[name] = outcome_of(Path(runs) / name, name)
            rows.append(f"| {' | '.join(cells(name, outcome))} |")
            print(rows[-1], flush=True)
    head = "| Fault or decoy | Description | Verdict | Reported holder | Steps from first update to finding |"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "leak_zoo.md").write_text("\n".join([head, "|---|---|---|---|---|", *rows]) + "\n")
    facts = {name: {**asdict(outcome), "text": None} for name, outcome in outcomes.items()}
    (folder / "leak_zoo.json").write_text(json.dumps(facts, indent=1) + "\n")


def cells(name: str, outcome: zoo.Outcome) -> list[str]:
    """Return the cells of one row. Of several reported culprits, the line with the right one is shown."""
    if outcome.found_at is None:
        return [name, zoo.description(name), "silent", "", ""]
    lines = outcome.culprits.splitlines()
    culprit = zoo.LEAKS[name].culprit if name in zoo.LEAKS else ""
    named = next((line for line in lines if culprit in line), lines[0])
    return [name, zoo.description(name), outcome.verdicts[0], named, f"{outcome.found_at - FIRST_UPDATE:,}"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
