"""Draw the figures of README.md and docs/ from the raw data in docs/results: `make docs-figures`."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from PIL import Image

from reverie.commands.plot import main as plot
from reverie.utils.errors import FlagParser, exit_on_user_error
from reverie.utils.logging import read_lines
from reverie.utils.units import count_text

RESULTS = Path(__file__).parent.parent / "docs" / "results"
FIGURES = Path(__file__).parent.parent / "docs" / "figures"
EXPERIMENTS = ("dreamer_catch", "dreamer_cartpole", "dreamer_pendulum")
PONG = RESULTS / "dreamer_ataripong"
CPU_PONG = {f"seed {seed}": PONG / f"seed_{seed}_cpu" for seed in (1, 2, 3, 4)}
H100_PONG = {f"seed {seed}": PONG / f"h100_seed_{seed}" for seed in (1, 2, 3)}
OTHER_TASKS = {
    "boxing": "Boxing",
    "freeway": "Freeway",
    "inverted_pendulum": "InvertedPendulum-v5, pixels",
}
FRAMES_OF_AN_UPDATE = 8 * 16
# Number of last episodes in the printed score.
SCORED = 20
# Maximal number of episodes in the drawn mean. It is smaller for short runs.
WIDEST_SMOOTHING = 20
STRIP_FRAMES = 10
STRIP_SCALE = 2
PERFORMANCE = [RESULTS / "performance" / name for name in ("dreamers.json", "cpu.json")]
BARS = {
    "update_size1m": "update, size1m",
    "update_size12m": "update, size12m",
    "update_strided_size1m": "update, size1m strided",
    "update_strided_size12m": "update, size12m strided",
    "policy_step_size1m_1": "policy step, size1m, 1 env",
    "policy_step_size1m_8": "policy step, size1m, 8 envs",
    "replay_sample": "replay: draw 16 windows of 64",
    "end_to_end": "32 agent steps and an update",
    "memory_size1m": "peak of an update, size1m",
    "memory_size12m": "peak of an update, size12m",
}
SWIMMER = {
    "erl": "evolution and TD3",
    "evolution": "evolution alone",
    "shared": "10 learners, one replay",
    "td3": "TD3 alone",
}
# Variants with this prefix are limits, not competitors.
LIMIT = "limit"


def main() -> None:
    """Draw every figure and print the table of results."""
    with exit_on_user_error():
        FlagParser(description=__doc__, epilog="There are no settings.").parse_args()
    FIGURES.mkdir(exist_ok=True)
    shown = {name: seeds_of(name) for name in EXPERIMENTS}
    shown |= {"Pong on an H100": H100_PONG, "Pong on a CPU": CPU_PONG}
    draw_panels(shown, FIGURES / "learning_curves.png")
    others = {title: {"seed 1": RESULTS / "other_tasks" / name} for name, title in OTHER_TASKS.items()}
    draw_panels(others, FIGURES / "other_tasks.png")
    draw_pong(FIGURES / "pong_cpu.png")
    draw_strip(PONG / "seed_1" / "open_loop.mp4", FIGURES / "pong_open_loop.png")
    draw_performance(FIGURES / "performance.png")
    draw_swimmer(FIGURES / "swimmer.png")
    with_and_without_decoder = [
        *sorted(RESULTS.glob("dreamer_catch/preset_until_2026_11_26/seed_*")),
        RESULTS / "objectives" / "catch_barlow",
    ]
    plot([*map(str, with_and_without_decoder), f"out={FIGURES / 'compared.png'}"])
    subprocess.run([sys.executable, RESULTS / "dreamer_catch" / "scripts" / "two_ranks.py"], check=True)


def seeds_of(name: str) -> dict[str, Path]:
    """Return the runs of an experiment by seed."""
    return {run.name.replace("_", " "): run for run in sorted((RESULTS / name).glob("seed_*"))}


def draw_panels(shown: dict[str, dict[str, Path]], target: Path) -> None:
    """Draw one panel of learning curves per task."""
    figure, axes = plt.subplots(1, len(shown), figsize=(4 * len(shown), 3))
    for axis, (name, runs) in zip(axes, shown.items(), strict=True):
        draw_curves(axis, name, runs)
    figure.tight_layout()
    figure.savefig(target, dpi=110)


def draw_curves(axis: Axes, name: str, runs: dict[str, Path]) -> None:
    """Plot each seed's returns (thin) and running mean (thick), and print the last episodes' mean."""
    for index, (seed, run) in enumerate(runs.items()):
        steps, returns = returns_of(run)
        draw_curve(axis, steps, returns, f"C{index}", seed)
        last = returns[-SCORED:]
        episodes = count_text(len(returns), "episode")
        print(f"{name} {seed}: mean of the last {len(last)} of {episodes} {last.mean():.2f}")
    axis.set_title(name)
    axis.set_xlabel("agent steps")
    axis.set_ylabel("episode return")
    axis.locator_params(axis="x", nbins=5)
    axis.legend(fontsize=8)


def returns_of(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the agent step and the return of each episode in a run."""
    found = [(line["step"], line["episode/return"]) for line in read(run) if "episode/return" in line]
    return tuple(np.array(found).T)


def draw_curve(axis: Axes, at: np.ndarray, returns: np.ndarray, colour: str, label: str) -> None:
    """Plot returns (thin) and their running mean (thick)."""
    window = max(1, min(WIDEST_SMOOTHING, len(returns) // 12))
    mean = np.convolve(returns, np.ones(window) / window, mode="valid")
    axis.plot(at, returns, color=colour, alpha=0.2, linewidth=0.7)
    axis.plot(at[window - 1 :], mean, color=colour, label=label)


def draw_pong(target: Path) -> None:
    """Plot the seeds of Pong on a CPU against each kind of cost."""
    figure, axes = plt.subplots(1, 4, figsize=(16, 3), sharey=True)
    for index, (seed, run) in enumerate(CPU_PONG.items()):
        steps, returns = returns_of(run)
        logged = [(line["step"], line["train/updates"]) for line in read(run) if "train/updates" in line]
        updates = np.interp(steps, *np.array(logged).T)
        hours = np.interp(steps, *np.loadtxt(run / "cpu_seconds.csv", delimiter=",", skiprows=1).T) / 3600
        costs = {
            "agent steps": steps,
            "updates": updates,
            "replayed frames": FRAMES_OF_AN_UPDATE * updates,
            "hours of one CPU core": hours,
        }
        for axis, (cost, at) in zip(axes, costs.items(), strict=True):
            draw_curve(axis, at, returns, f"C{index}", seed)
            axis.set_xlabel(cost)
            axis.locator_params(axis="x", nbins=5)
    axes[0].set_ylabel("episode return")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(target, dpi=110)


def draw_strip(video: Path, target: Path) -> None:
    """Combine frames of an open-loop video: truth, prediction and error of the first sequence."""
    with av.open(str(video)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    chosen = [frames[i] for i in np.linspace(0, len(frames) - 1, STRIP_FRAMES).round().astype(int)]
    side = chosen[0].shape[0] // 3
    strip = np.concatenate([frame[:, :side] for frame in chosen], axis=1)
    picture = Image.fromarray(strip)
    factor = STRIP_SCALE * 64 / side
    size = (round(picture.width * factor), round(picture.height * factor))
    picture.resize(size, Image.Resampling.NEAREST).save(target)


def draw_swimmer(target: Path) -> None:
    """Draw the best member's fitness over all agent steps, with thin seeds and a thick mean."""
    figure, axis = plt.subplots(figsize=(7, 4))
    for index, (name, words) in enumerate(SWIMMER.items()):
        runs = [fitness_of(run) for run in sorted((RESULTS / "population" / "swimmer").glob(f"{name}_*"))]
        common = np.linspace(max(steps[0] for steps, _ in runs), min(steps[-1] for steps, _ in runs), 40)
        for steps, fitness in runs:
            axis.plot(steps, fitness, color=f"C{index}", alpha=0.35, linewidth=0.8)
        mean = np.mean([np.interp(common, steps, fitness) for steps, fitness in runs], axis=0)
        axis.plot(
            common, mean, color=f"C{index}", linewidth=2.2, label=f"{words} ({count_text(len(runs), 'seed')})"
        )
        last = [round(float(fitness[-5:].mean()), 1) for _, fitness in runs]
        print(f"swimmer {name}: best member, mean of the last 5 generations {last}")
    axis.set_xlabel("agent steps, evaluation included")
    axis.set_ylabel("return of the best member")
    axis.set_title("Swimmer-v5")
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(target, dpi=110)


def fitness_of(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the step and the best member's fitness for each generation."""
    lines = [line for line in read(run) if "population/fitness_best" in line]
    fitness = np.array([line["population/fitness_best"] for line in lines])
    return np.array([line["step"] for line in lines]), fitness


def draw_performance(target: Path) -> None:
    """Draw a panel for each benchmark row, with a bar for each variant and a line at the floor."""
    files = [json.loads(path.read_text())["rows"] for path in PERFORMANCE]
    found = {name: [[row for row in rows if row["row"] == name] for rows in files] for name in BARS}
    groups = {name: next(filter(None, of_files)) for name, of_files in found.items() if any(of_files)}
    figure, axes = plt.subplots(math.ceil(len(groups) / 2), 2, figsize=(11, 1 + 0.8 * len(groups)))
    for axis, (name, group) in zip(axes.flat, groups.items(), strict=False):
        draw_bars(axis, [row for row in group if not row["variant"].startswith(LIMIT)])
        axis.set_title(BARS[name], fontsize=10)
    for axis in axes.flat[len(groups) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(target, dpi=110)


def draw_bars(axis: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw the medians, with Reverie in a different color than the peers."""
    factor, unit = 1.0, rows[0]["unit"]
    if unit == "s" and max(row["median"] for row in rows) < 1:
        factor, unit = 1e3, "ms"
    names = [row["variant"] for row in rows]
    medians = [factor * row["median"] for row in rows]
    colours = ["C0" if name.startswith("reverie") else "C7" for name in names]
    bars = axis.barh(names, medians, color=colours)
    axis.bar_label(
        bars,
        [f"{median:,.0f} {unit}" if median >= 100 else f"{median:.3g} {unit}" for median in medians],
        padding=3,
        fontsize=8,
    )
    axis.axvline(factor * rows[0]["floor"]["value"], color="C3", linestyle="--", linewidth=1)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.25 * max(medians))
    axis.tick_params(labelsize=8)


def read(run: Path) -> list[dict[str, float]]:
    """Return the lines of a run's metrics."""
    return list(read_lines(run / "metrics.jsonl"))


if __name__ == "__main__":
    main()
