"""Draw Catch on one rank and on two, three seeds each, and print their ends: `python two_ranks.py`."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

RUNS = Path(__file__).parents[1]
FIGURE = RUNS.parents[1] / "figures" / "catch_two_ranks.png"
EPISODES = 50


def main() -> None:
    """One line for each seed: the mean of its last 50 training episodes."""
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for colour, ranks, folder in (
        ("tab:blue", "one rank", "seed_{}"),
        ("tab:orange", "two ranks", "ranks_2/seed_{}"),
    ):
        for seed in (1, 2, 3):
            text = (RUNS / folder.format(seed) / "metrics.jsonl").read_text()
            lines = [json.loads(line) for line in text.splitlines()]
            steps, returns = np.array(
                [(line["step"], line["episode/return"]) for line in lines if "episode/return" in line]
            ).T
            means = np.convolve(returns, np.full(EPISODES, 1 / EPISODES), "valid")
            axes.plot(steps[EPISODES - 1 :], means, color=colour, label=ranks if seed == 1 else None)
            at_zero = int(steps[EPISODES - 1 :][np.argmax(means > 0)])
            [updates] = [line["train/updates"] for line in lines if line.get("train/updates")][-1:]
            end = f"{means[-1]:.2f} after {updates:,.0f} updates"
            print(f"{ranks}, seed {seed}: above 0 at step {at_zero:,}, at the end {end}")
    axes.set(xlabel="agent steps", ylabel=f"mean return of {EPISODES} episodes", xlim=(0, 4200))
    axes.legend()
    figure.savefig(FIGURE, dpi=120)


if __name__ == "__main__":
    main()
