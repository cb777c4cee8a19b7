"""Write docs/dmc.md and its figure: python -m benchmarks.dmc_page.

Runs come from `docs/results/dmc_curves`, and the author's seeds from `benchmarks/dmc_baselines.csv`. A task
appears on the page once its run has raw data.
"""

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.atari100k_page import ROOT, Result, number, read_results, table, wrapped
from benchmarks.published_curves import SEEDS
from benchmarks.queue.jobs import RUN_FILE
from benchmarks.queue.rows import read_rows
from reverie.utils.errors import FlagParser, exit_on_user_error
from reverie.utils.units import count_text

LIST = ROOT / "benchmarks" / "dmc_curves.yaml"
RESULTS = ROOT / "docs" / "results" / "dmc_curves"
PAGE = ROOT / "docs" / "dmc.md"
FIGURE = ROOT / "docs" / "figures" / "dmc_curves.png"
WINDOW = 50_000, 100_000
"""First and last frame of the compared training episodes."""

REASONS: dict[str, str] = {}
"""Known reasons for a lower mean return than the author's lowest seed, by task. Written by hand."""

Seeds = Mapping[str, Sequence[NDArray[np.float64]]]
"""The points of each seed by task: arrays of frames and returns, (2, n)."""


def read_seeds() -> Seeds:
    """Return the author's points."""
    _, _, *lines = SEEDS.read_text().splitlines()
    points: defaultdict[str, defaultdict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        task, seed, *point = line.split(",")
        points[task][seed].append([float(value) for value in point])
    return {task: [np.array(each).T for each in seeds.values()] for task, seeds in points.items()}


def episodes_of(result: Result) -> NDArray[np.float64]:
    """Return the frames at the end of each training episode and its return, (2, n)."""
    steps, returns = result.run.logged["episode/return"]
    return np.array([steps * result.run.settings["env.action_repeat"], returns])


def window_mean(points: NDArray[np.float64]) -> float:
    """Return the mean return over the points in `WINDOW`."""
    frames, returns = points
    return float(returns[(frames >= WINDOW[0]) & (frames <= WINDOW[1])].mean())


def lowest(seeds: Seeds, task: str) -> float:
    """Return the lowest mean return of the author's seeds of a task."""
    return min(map(window_mean, seeds[task]))


def first_paragraph(results: Sequence[Result], seeds: Seeds, tasks: int) -> str:
    """Return a paragraph with the number of tasks, the tasks below the author's seeds, and failed runs."""
    complete = [each for each in results if each.score is not None]
    means = {each.task: window_mean(episodes_of(each)) for each in complete}
    below = [
        f"{task} ({number(mean)} against {number(lowest(seeds, task))}"
        f"{': ' + REASONS[task] if task in REASONS else ''})"
        for task, mean in means.items()
        if mean < lowest(seeds, task)
    ]
    failed = [each.name for each in results if each.score is None]
    sentences = [
        f"Raw data exists for {len(results)} of {count_text(tasks, 'task')}.",
        f"From {WINDOW[0]:,} to {WINDOW[1]:,} environment steps, Reverie's mean return is at or above the",
        f"author's lowest seed in {len(means) - len(below)} of them.",
        *([f"Below: {', '.join(below)}."] if below else []),
        *([f"Failed: {', '.join(failed)}."] if failed else []),
    ]
    return wrapped(" ".join(sentences))


def scores_table(results: Sequence[Result], seeds: Seeds) -> str:
    """Return a table with the mean returns, the final evaluation and the cost of each run."""
    rows = []
    for each in results:
        own = sorted(map(window_mean, seeds[each.task]))
        author = [number(value) for value in (own[0], float(np.mean(own)), own[-1])]
        score, mean = f"failed with exit code {each.summary['exit_code']}", "-"
        if each.score is not None:
            spread = "" if each.standard_error is None else f" ± {number(each.standard_error)}"
            score, mean = f"{number(each.score)}{spread}", f"**{number(window_mean(episodes_of(each)))}**"
        link = f"[{each.name}](results/dmc_curves/{each.name}/{RUN_FILE})"
        commit = f"`{each.training['commit']}`"
        rows.append([link, *author, mean, score, f"{each.summary['core_hours']:.2f}", commit])
    author = [f"Author's {name}" for name in ("lowest seed", "mean", "highest seed")]
    return table(["Run", *author, "Reverie", "Evaluation", "Core-hours", "Commit"], rows)


def page(results: Sequence[Result]) -> str:
    """Return the text of the page, with a table and a figure if at least one run has raw data."""
    listed, seeds = read_rows(LIST), read_seeds()
    summary, sections = "The runs are under way, and none is complete yet.", []
    if results:
        summary = first_paragraph(results, seeds, len(listed.rows))
        sections = [RESULTS_SECTION.format(scores=scores_table(results, seeds))]
    command = shlex.join(listed.rows[0].settings)
    protocol = PROTOCOL.format(command=command, episodes=listed.evaluation.episodes)
    return "\n\n".join([HEAD.format(summary=summary), protocol, *sections]) + "\n"


HEAD = """\
<!-- Written by `python -m benchmarks.dmc_page`. Edit that file instead. -->

# DeepMind Control Suite: the author's learning curves

{summary}

```bash
python -m benchmarks.queue runs=../runs core=1 rows=benchmarks/dmc_curves.yaml results=docs/results/dmc_curves
python -m benchmarks.dmc_page    # regenerate this page
```"""

PROTOCOL = """\
## Protocol

- **Settings of Reverie**: `experiment=paper_dmc_proprio`, the settings behind the published curves
  ([table](differences.md#paper-presets)), with one exception: the network has 1 million parameters
  (`model=size1m`), because these runs train on one CPU core, in bfloat16. The author's runs use 12 million.
- **Author's seeds**: five seeds of DreamerV3 (Nature), from `scores/dmc_proprio-dreamerv3.json.gz` of
  [danijar/dreamerv3](https://github.com/danijar/dreamerv3). `python -m benchmarks.published_curves <clone>`
  writes their first points to `benchmarks/dmc_baselines.csv`.
- **Mean return**: mean over the training episodes of Reverie, or over the points of the author, from 50,000
  to 100,000 environment steps. Each point of the author covers 10,000 environment steps.
- **Evaluation**: mean return of {episodes} fresh episodes after the last step, with the sampled policy. ± is
  the standard error.

```bash
OMP_NUM_THREADS=1 reverie-train {command}
```"""

RESULTS_SECTION = """\
## Results

{scores}

The blue line is the mean return of Reverie's environments, whose episodes end at the same time. Each gray
line is a seed of the author.

![Learning curves of each task](figures/dmc_curves.png)"""


def draw(results: Sequence[Result], target: Path) -> None:
    """Draw a panel for each task with Reverie's curve over the author's seeds."""
    seeds = read_seeds()
    figure = Figure((8, 2.2), layout="constrained")
    for at, result in enumerate(results):
        axis = figure.add_subplot(1, max(len(results), 2), at + 1)
        for points in seeds[result.task]:
            axis.plot(*points, color="0.6", linewidth=1)
        frames, returns = episodes_of(result)
        ends = np.unique(frames)
        axis.plot(ends, [returns[frames == end].mean() for end in ends], color="C0")
        axis.set_title(result.task, fontsize=10)
        axis.tick_params(labelsize=8)
        axis.set_xticks([0, 50_000, 100_000], ["0", "50k", "100k"])
    figure.savefig(target, dpi=200)


@exit_on_user_error()
def main() -> None:
    """Write the page, and the figure if there are results."""
    FlagParser(description=__doc__).parse_args()
    results = read_results(RESULTS, "env.task")
    PAGE.write_text(page(results))
    if results:
        draw(results, FIGURE)
    print(f"{PAGE}: {count_text(len(results), 'run')}")


if __name__ == "__main__":
    main()
