"""Plot Catch on one and two ranks with three seeds each, and print results: `python two_ranks.py`."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from reverie.utils.logging import read_lines

RUNS = Path(__file__).parents[1]
FIGURE = RUNS.parents[1] / "figures" / "catch_two_ranks.png"
EPISODES = 50
FIRST_UPDATE = 500
SHOWN = {  # folders of one rank and of two
    "the preset: 8 windows": ("preset_until_2026_11_26/seed_{}", "ranks_2/seed_{}"),
    "48 windows, float32": ("windows_48/ranks_1/seed_{}", "windows_48/ranks_2/seed_{}"),
}


def main() -> None:
    """Draw one panel per batch size."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 3.2), sharey=True, layout="constrained")
    for axes, (batch, folders) in zip(panels, SHOWN.items(), strict=True):
        print(batch)
        for colour, ranks, folder in zip(("C0", "C1"), ("one rank", "two ranks"), folders, strict=True):
            for seed in (1, 2, 3):
                draw(axes, RUNS / folder.format(seed), colour, ranks, seed)
        axes.set(title=batch, xlabel="agent steps", xlim=(0, 4200))
        axes.legend()
    panels[0].set_ylabel(f"mean return of {EPISODES} episodes")
    figure.savefig(FIGURE, dpi=110)


def draw(axes: Axes, run: Path, colour: str, ranks: str, seed: int) -> None:
    """Draw the mean of a seed's last 50 training episodes. Print its zero crossing, its end and its time."""
    lines = list(read_lines(run / "metrics.jsonl"))
    steps, returns = np.array(
        [(line["step"], line["episode/return"]) for line in lines if "episode/return" in line]
    ).T
    means = np.convolve(returns, np.full(EPISODES, 1 / EPISODES), "valid")
    axes.plot(steps[EPISODES - 1 :], means, color=colour, label=ranks if seed == 1 else None)
    at_zero = int(steps[EPISODES - 1 :][np.argmax(means > 0)])
    [updates] = [line["train/updates"] for line in lines if line.get("train/updates")][-1:]
    paces = np.array(
        [(line["step"], line["speed/steps_per_second"]) for line in lines if "speed/steps_per_second" in line]
    )
    learns = paces[1:, 0] > FIRST_UPDATE
    seconds = float((np.diff(paces[:, 0]) / paces[1:, 1])[learns].sum())
    end = f"{means[-1]:.2f} after {updates:,.0f} updates, {seconds:,.0f} s from the first one on"
    print(f"{ranks}, seed {seed}: above 0 at step {at_zero:,}, at the end {end}")


if __name__ == "__main__":
    main()
