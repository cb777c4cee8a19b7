"""Plot Catch on one and two ranks with three seeds each, and print results: `python two_ranks.py`."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from reverie.utils.logging.json_lines import read_lines

RUNS = Path(__file__).parents[1]
FIGURE = RUNS.parents[1] / "figures" / "catch_two_ranks.png"
EPISODES = 50
FIRST_UPDATE = 500
SEEDS = (1, 2, 3)
# For each batch, the folders of the runs on one rank and on two.
SHOWN = {
    "the preset: 8 windows": ("preset_until_2026_11_26/seed_{}", "ranks_2/seed_{}"),
    "48 windows, float32": ("windows_48/ranks_1/seed_{}", "windows_48/ranks_2/seed_{}"),
}


def main() -> None:
    """Draw a panel for each batch: the mean of the seeds, and a band from the lowest to the highest seed."""
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
    for axes, (batch, folders) in zip(panels, SHOWN.items(), strict=True):
        print(batch)
        for colour, ranks, folder in zip(("C0", "C1"), ("one rank", "two ranks"), folders, strict=True):
            curves = [read(RUNS / folder.format(seed), ranks, seed) for seed in SEEDS]
            grid = np.linspace(max(at[0] for at, _ in curves), min(at[-1] for at, _ in curves), 200)
            rows = np.array([np.interp(grid, at, means) for at, means in curves])
            axes.fill_between(grid, rows.min(0), rows.max(0), color=colour, alpha=0.2, linewidth=0)
            axes.plot(grid, rows.mean(0), color=colour, linewidth=2, label=ranks)
        axes.set(title=batch, xlabel="agent steps", xlim=(0, 4200))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(title="mean and range of three seeds", loc="upper left", frameon=False)
    panels[0].set_ylabel(f"mean return of {EPISODES} episodes")
    figure.savefig(FIGURE, dpi=200)


def read(run: Path, ranks: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and mean returns of 50 episodes. Print the last mean, the time, and when 0 is exceeded."""
    lines = list(read_lines(run / "metrics.jsonl"))
    steps, returns = np.array(
        [(line["step"], line["episode/return"]) for line in lines if "episode/return" in line]
    ).T
    means = np.convolve(returns, np.full(EPISODES, 1 / EPISODES), "valid")
    at_zero = int(steps[EPISODES - 1 :][np.argmax(means > 0)])
    [updates] = [line["train/updates"] for line in lines if line.get("train/updates")][-1:]
    paces = np.array(
        [(line["step"], line["speed/steps_per_second"]) for line in lines if "speed/steps_per_second" in line]
    )
    learns = paces[1:, 0] > FIRST_UPDATE
    seconds = float((np.diff(paces[:, 0]) / paces[1:, 1])[learns].sum())
    end = f"{means[-1]:.2f} after {updates:,.0f} updates, {seconds:,.0f} s from the first one on"
    print(f"{ranks}, seed {seed}: above 0 at step {at_zero:,}, at the end {end}")
    return steps[EPISODES - 1 :], means


if __name__ == "__main__":
    main()
