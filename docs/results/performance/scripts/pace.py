"""Compare the pace of a run early and late: `python pace.py <metrics.jsonl> [step step]`.

It prints the median steps per second of the log intervals within 5,000 steps after each of the two steps.
"""

import json
import sys
from pathlib import Path
from statistics import median

from reverie.utils.logging.json_lines import read_lines

WINDOW = 5_000
SPEED = "speed/steps_per_second"


def main() -> None:
    path, *steps = sys.argv[1:]
    early, late = (int(step) for step in steps) if steps else (2_000, 50_000)
    lines = list(read_lines(Path(path)))
    first, second = (
        [line[SPEED] for line in lines if SPEED in line and start < line["step"] <= start + WINDOW]
        for start in (early, late)
    )
    last = [line for line in lines if SPEED in line][-1]
    result = {
        f"steps_per_second_from_{early}": median(first),
        f"steps_per_second_from_{late}": median(second),
        "ratio": median(second) / median(first),
        "intervals": [len(first), len(second)],
        "compilations": last.get("debug/compile/compilations"),
        "recompilations": last.get("debug/compile/recompilations"),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
