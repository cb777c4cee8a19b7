"""Draw the figures of README.md and docs/ from the raw data in docs/results: `make docs-figures`."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter
from PIL import Image

from reverie.commands.plot import main as plot
from reverie.utils.errors import FlagParser, exit_on_user_error
from reverie.utils.logging.json_lines import read_lines
from reverie.utils.units import count_text

RESULTS = Path(__file__).parent.parent / "docs" / "results"
FIGURES = Path(__file__).parent.parent / "docs" / "figures"
EXPERIMENTS = {"dreamer_catch": "Catch", "dreamer_cartpole": "CartPole-v1", "dreamer_pendulum": "Pendulum-v1"}
PONG = RESULTS / "dreamer_ataripong"
CPU_PONG = [PONG / f"seed_{seed}_cpu" for seed in (1, 2, 3, 4)]
H100_PONG = [PONG / f"h100_seed_{seed}" for seed in (1, 2, 3)]
OTHER_TASKS = {
    "boxing": "Boxing",
    "freeway": "Freeway",
    "inverted_pendulum": "InvertedPendulum, pixels",
}
FRAMES_OF_AN_UPDATE = 8 * 16
# Number of last episodes behind the printed score.
SCORED = 20
# Maximum number of episodes that the running mean covers. Runs with few episodes use fewer.
WIDEST_SMOOTHING = 20
GRID_POINTS = 200
# At 8 inches, text of 10 points is 12 pixels high on the site, where figures are 700 pixels wide.
WIDTH = 8.0
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
STYLE |= {"axes.grid": True, "grid.alpha": 0.25, "axes.axisbelow": True, "savefig.dpi": 200}
SEEDS_LEGEND = "line: mean of the seeds\nband: lowest to highest seed"
EPISODES_LEGEND = "One seed each. Line: running mean of the returns. Band: their 10th to 90th percentile."
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
# Names of variants that are limits instead of competitors begin with this word.
LIMIT = "limit"
# Positions on the horizontal axis, and values.
Curve = tuple[np.ndarray, np.ndarray]


def main() -> None:
    """Draw every figure and print the table of results."""
    with exit_on_user_error():
        FlagParser(description=__doc__, epilog="There are no settings.").parse_args()
    FIGURES.mkdir(exist_ok=True)
    with matplotlib.rc_context(STYLE):
        draw_tasks(FIGURES / "learning_curves.png")
        draw_other_tasks(FIGURES / "other_tasks.png")
        draw_pong(FIGURES / "pong_cpu.png")
        draw_performance(FIGURES / "performance.png")
        draw_swimmer(FIGURES / "swimmer.png")
    draw_strip(PONG / "seed_1" / "open_loop.mp4", FIGURES / "pong_open_loop.png")
    with_and_without_decoder = [
        *sorted(RESULTS.glob("dreamer_catch/preset_until_2026_11_26/seed_*")),
        RESULTS / "objectives" / "catch_barlow",
    ]
    plot([*map(str, with_and_without_decoder), f"out={FIGURES / 'compared.png'}"])
    subprocess.run([sys.executable, RESULTS / "dreamer_catch" / "scripts" / "two_ranks.py"], check=True)


def draw_tasks(target: Path) -> None:
    """Draw a panel of learning curves for each task, and the legend in place of a sixth panel."""
    shown = {title: sorted((RESULTS / name).glob("seed_*")) for name, title in EXPERIMENTS.items()}
    shown |= {"Pong, H100": H100_PONG, "Pong, one CPU core": CPU_PONG}
    figure, axes = plt.subplots(2, 3, figsize=(WIDTH, 4.8), layout="constrained")
    for axis, (name, runs) in zip(axes.flat, shown.items(), strict=False):
        print_scores(name, runs)
        draw_seeds(axis, [smoothed(*returns_of(run)) for run in runs], "C0")
        axis.set_title(f"{name} ({count_text(len(runs), 'seed')})")
        axis.set_xlabel("agent steps")
        thousands(axis)
    for axis in axes[:, 0]:
        axis.set_ylabel("episode return")
    axes[1, 2].axis("off")
    axes[1, 2].text(0.5, 0.5, SEEDS_LEGEND, ha="center", va="center", linespacing=1.6)
    figure.savefig(target)


def draw_other_tasks(target: Path) -> None:
    """Draw the returns of tasks with a single seed: the running mean and the spread."""
    figure, axes = plt.subplots(1, len(OTHER_TASKS), figsize=(WIDTH, 2.9), layout="constrained")
    for axis, (folder, title) in zip(axes, OTHER_TASKS.items(), strict=True):
        run = RESULTS / "other_tasks" / folder
        print_scores(title, [run])
        steps, returns = returns_of(run)
        windows = np.lib.stride_tricks.sliding_window_view(returns, window_of(returns))
        at = steps[len(steps) - len(windows) :]
        axis.fill_between(at, *np.percentile(windows, (10, 90), axis=1), color="C0", alpha=0.25, linewidth=0)
        axis.plot(at, windows.mean(axis=1), color="C0", linewidth=2)
        axis.set_title(title)
        if np.ptp(returns) == 0:
            axis.set_ylim(returns[0] - 1, returns[0] + 1)
        thousands(axis)
    axes[0].set_ylabel("episode return")
    figure.supxlabel(f"agent steps\n{EPISODES_LEGEND}", fontsize=9)
    figure.savefig(target)


def print_scores(name: str, runs: Sequence[Path]) -> None:
    """Print the mean of the last episodes of each run."""
    for run in runs:
        _, returns = returns_of(run)
        last = returns[-SCORED:]
        episodes = count_text(len(returns), "episode")
        print(f"{name} {run.name}: mean of the last {len(last)} of {episodes} {last.mean():.2f}")


def returns_of(run: Path) -> Curve:
    """Return the agent step and the return of each episode in a run."""
    found = [(line["step"], line["episode/return"]) for line in read(run) if "episode/return" in line]
    steps, returns = np.array(found).T
    return steps, returns


def window_of(returns: np.ndarray) -> int:
    """Return the number of episodes that a running mean covers."""
    return max(1, min(WIDEST_SMOOTHING, len(returns) // 12))


def smoothed(at: np.ndarray, returns: np.ndarray) -> Curve:
    """Return the running mean. If several episodes end at the same position, use the last one."""
    window = window_of(returns)
    mean = np.convolve(returns, np.ones(window) / window, mode="valid")
    places, last = np.unique(at[window - 1 :][::-1], return_index=True)
    return places, mean[::-1][last]


def draw_seeds(axis: Axes, seeds: Sequence[Curve], colour: str, label: str | None = None) -> None:
    """Plot the mean over the seeds where all have values, and a band from the lowest to the highest seed."""
    grid = np.linspace(max(at[0] for at, _ in seeds), min(at[-1] for at, _ in seeds), GRID_POINTS)
    rows = np.array([np.interp(grid, at, values) for at, values in seeds])
    axis.fill_between(grid, rows.min(axis=0), rows.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    axis.plot(grid, rows.mean(axis=0), color=colour, linewidth=2, label=label)


def thousands(axis: Axes) -> None:
    """Label only a few ticks. Large values become 100k or 2M."""
    short = EngFormatter(sep="")
    axis.xaxis.set_major_formatter(lambda place, _: short(place) if place >= 1e3 else f"{place:g}")
    axis.locator_params(axis="x", nbins=4)


def draw_pong(target: Path) -> None:
    """Plot the Pong seeds trained on a CPU against each cost."""
    seeds: dict[str, list[Curve]] = {}
    for run in CPU_PONG:
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
        for cost, at in costs.items():
            seeds.setdefault(cost, []).append(smoothed(at, returns))
    figure, axes = plt.subplots(2, 2, figsize=(WIDTH, 5), sharey=True, layout="constrained")
    for axis, (cost, curves) in zip(axes.flat, seeds.items(), strict=True):
        draw_seeds(axis, curves, "C0")
        axis.set_xlabel(cost)
        thousands(axis)
    for axis in axes[:, 0]:
        axis.set_ylabel("episode return")
    axes[0, 0].text(0.97, 0.08, SEEDS_LEGEND, ha="right", transform=axes[0, 0].transAxes)
    figure.savefig(target)


def draw_strip(video: Path, target: Path) -> None:
    """Combine frames of an open-loop video: ground truth, prediction and error of the first sequence."""
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
    """Draw the best member's fitness over the agent steps of all members: mean and range over the seeds."""
    figure, axis = plt.subplots(figsize=(WIDTH, 4.2), layout="constrained")
    for index, (name, words) in enumerate(SWIMMER.items()):
        runs = [fitness_of(run) for run in sorted((RESULTS / "population" / "swimmer").glob(f"{name}_*"))]
        draw_seeds(axis, runs, f"C{index}", f"{words} ({count_text(len(runs), 'seed')})")
        last = [round(float(fitness[-5:].mean()), 1) for _, fitness in runs]
        print(f"swimmer {name}: best member, mean of the last 5 generations {last}")
    axis.set_xlabel("agent steps, evaluation included")
    axis.set_ylabel("return of the best member")
    axis.set_title("Swimmer-v5")
    thousands(axis)
    axis.legend(title=SEEDS_LEGEND.replace("\n", "; "), loc="upper left", frameon=False)
    figure.savefig(target)


def fitness_of(run: Path) -> Curve:
    """Return the step and the best member's fitness for every generation."""
    lines = [line for line in read(run) if "population/fitness_best" in line]
    fitness = np.array([line["population/fitness_best"] for line in lines])
    return np.array([line["step"] for line in lines]), fitness


def draw_performance(target: Path) -> None:
    """Draw a panel for each benchmark row, with a bar for each variant and a line at the floor."""
    files = [json.loads(path.read_text())["rows"] for path in PERFORMANCE]
    found = {name: [[row for row in rows if row["row"] == name] for rows in files] for name in BARS}
    groups = {
        name: [row for row in next(filter(None, of_files)) if not row["variant"].startswith(LIMIT)]
        for name, of_files in found.items()
        if any(of_files)
    }
    # Stack the panels, each as high as its number of bars, so that all bars are equally thick.
    heights = [1.2 + len(rows) for rows in groups.values()]
    figure, axes = plt.subplots(
        len(groups), figsize=(WIDTH, 0.27 * sum(heights)), height_ratios=heights, layout="constrained"
    )
    for axis, (name, rows) in zip(axes, groups.items(), strict=True):
        draw_bars(axis, rows)
        axis.set_title(BARS[name], loc="left")
    figure.savefig(target)


def draw_bars(axis: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw the medians, Reverie's in a different color from the peers'. Labels replace the axis."""
    factor, unit = 1.0, rows[0]["unit"]
    if unit == "s" and max(row["median"] for row in rows) < 1:
        factor, unit = 1e3, "ms"
    names = [row["variant"] for row in rows]
    medians = [factor * row["median"] for row in rows]
    colours = ["C0" if name.startswith("reverie") else "0.65" for name in names]
    bars = axis.barh(names, medians, color=colours)
    labels = [f"{median:,.0f} {unit}" if median >= 100 else f"{median:.3g} {unit}" for median in medians]
    axis.bar_label(bars, labels, padding=3)
    axis.axvline(factor * rows[0]["floor"]["value"], color="C3", linestyle="--", linewidth=1.2)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.2 * max(medians))
    axis.xaxis.set_visible(False)
    axis.spines["bottom"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.grid(visible=False)


def read(run: Path) -> list[dict[str, float]]:
    """Return the lines of a run's metrics."""
    return list(read_lines(run / "metrics.jsonl"))


if __name__ == "__main__":
    main()
