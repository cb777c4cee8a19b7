"""Compare the Catch runs by the CPU time of their updates: `python equal_time.py`.

The time per update is from `update_time.json`, because the runs shared their machines.
"""

import json
from pathlib import Path

import numpy as np

from reverie.utils.logging.json_lines import read_lines

RESULTS = Path(__file__).parents[2]
RUNS = {
    "barlow": ["objectives/catch_barlow"],
    "reconstruction": [f"dreamer_catch/preset_until_2026_11_26/seed_{seed}" for seed in (1, 2, 3)],
}
CPU_SECONDS = (221, 332, 442)
EPISODES = 100


def mean_after(run: Path, updates: float) -> float:
    """Return the mean return of the last training episodes before a number of updates."""
    lines = list(read_lines(run / "metrics.jsonl"))
    logged = np.array([(line["train/updates"], line["step"]) for line in lines if "train/updates" in line])
    step = np.interp(updates, *logged.T)
    returns = [line["episode/return"] for line in lines if "episode/return" in line and line["step"] <= step]
    return float(np.mean(returns[-EPISODES:]))


def main() -> None:
    milliseconds = json.loads((RESULTS / "objectives" / "update_time.json").read_text())["dreamer_catch"]
    for objective, runs in RUNS.items():
        for seconds in CPU_SECONDS:
            updates = 1000 * seconds / milliseconds[objective]
            means = ", ".join(f"{mean_after(RESULTS / run, updates):.2f}" for run in runs)
            print(f"{objective}, {seconds} CPU seconds, {updates:,.0f} updates: {means}")


if __name__ == "__main__":
    main()
