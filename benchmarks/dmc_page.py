"""Write docs/dmc.md and its figures: python -m benchmarks.dmc_page.

Runs come from `docs/results/dmc_curves`, and the author's seeds from `benchmarks/dmc_baselines.csv`. A task
appears on the page once its run has raw data. In the same folder, `<task>_author` contains the scores of the
author's code with the small network (`benchmarks/peers/dreamerv3_run.py`).
"""

import csv
import json
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.atari100k_page import ROOT, WIDTH, Result, number, read_results, table
from benchmarks.published_curves import SEEDS
from benchmarks.queue.jobs import RUN_FILE
from benchmarks.queue.rows import read_rows
from reverie.utils.errors import FlagParser, exit_on_user_error
from reverie.utils.logging.json_lines import read_lines
from reverie.utils.units import count_text

LIST = ROOT / "benchmarks" / "dmc_curves.yaml"
RESULTS = ROOT / "docs" / "results" / "dmc_curves"
PAGE = ROOT / "docs" / "dmc.md"
FIGURE = ROOT / "docs" / "figures" / "dmc_curves.png"
TRAINING_FIGURE = ROOT / "docs" / "figures" / "dmc_training.png"
WINDOW = 50_000, 100_000
"""First and last frame of the compared training episodes."""

REASONS = {
    "cartpole_balance": "the small network starts slowly, with the author's code, too",
    "reacher_easy": "until step 40,500, the small network learns as slowly with the author's code",
    "walker_walk": "until step 32,000, the small network learns as slowly with the author's code",
}
"""Known reasons for a lower mean return than the author's lowest seed, by task. Written by hand."""

PAPER_RATE = 4e-5
ROUND = 16_000
"""Environment steps of an episode in all 16 environments."""
AUTHOR_SCORES, AUTHOR_METRICS = "scores.jsonl", "training.jsonl"
COMPARED = "cartpole_balance"
"""Task of the figure with training metrics."""
LONG = "long_parity"
"""Folder of the results of `benchmarks/peers/dreamerv3_long.py`. `before_*` is Reverie before 7336118b."""
HALF = "bfloat16"
"""Folder in `LONG` of the results in bfloat16."""
LONG_UPDATES = 900
"""Last of the 100 updates in the table."""
TRAINING_TAGS = {
    "value": ("train/val", "train/value_mean"),
    "reward loss": ("train/loss/rew", "train/loss/reward"),
    "advantage (std)": ("train/adv_std", "train/advantage_std"),
    "policy entropy": ("train/ent/action", "train/policy_entropy"),
}
"""Compared training metrics: tags of the author's code and of Reverie."""

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


def is_listed(result: Result) -> bool:
    """Return whether the run has the paper's learning rate, so that it counts for the task."""
    return result.run.settings["optimizer.learning_rate"] == PAPER_RATE


def author_runs(folder: Path) -> dict[str, NDArray[np.float64]]:
    """Return the frames and returns of the training episodes of the author's code by task, (2, n)."""
    found = {}
    for file in sorted(folder.glob(f"*_author/{AUTHOR_SCORES}")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        points = [[row["step"], row["episode/score"]] for row in rows]
        found[file.parent.name.removesuffix("_author")] = np.array(points, float).T
    return found


def window_mean(points: NDArray[np.float64]) -> float:
    """Return the mean return over the points in `WINDOW`."""
    frames, returns = points
    return float(returns[(frames >= WINDOW[0]) & (frames <= WINDOW[1])].mean())


def lowest(seeds: Seeds, task: str) -> float:
    """Return the lowest mean return of the author's seeds of a task."""
    return min(map(window_mean, seeds[task]))


def first_paragraph(results: Sequence[Result], seeds: Seeds) -> str:
    """Return a paragraph with the number of tasks, the tasks below the author's seeds, and failed runs."""
    listed = [each for each in results if is_listed(each)]
    by_task: defaultdict[str, list[float]] = defaultdict(list)
    for each in listed:
        if each.score is not None:
            by_task[each.task].append(window_mean(episodes_of(each)))
    # A task may have several seeds.
    means = {task: sum(values) / len(values) for task, values in by_task.items()}
    below = [
        f"{task} ({number(mean)}, lowest seed {number(lowest(seeds, task))}"
        f"{': ' + REASONS[task] if task in REASONS else ''})"
        for task, mean in means.items()
        if mean < lowest(seeds, task)
    ]
    failed = [each.name for each in listed if each.score is None]
    sentences = [
        f"Raw data exists for {len({each.task for each in listed})} of {count_text(len(seeds), 'task')},",
        "with 1 million parameters for Reverie and 12 million for the author.",
        f"From {WINDOW[0]:,} to {WINDOW[1]:,} environment steps, Reverie's mean return is at or above the",
        f"author's lowest seed in {len(means) - len(below)} of them.",
        *([f"Below: {', '.join(below)}."] if below else []),
        *([f"Failed: {', '.join(failed)}."] if failed else []),
    ]
    return fill(" ".join(sentences), WIDTH, break_long_words=False, break_on_hyphens=False)


def scores_table(results: Sequence[Result], seeds: Seeds, author: Mapping[str, NDArray[np.float64]]) -> str:
    """Return a table with the mean return of all seeds and runs of each task, and the cost of the runs."""
    rows = []
    for task in dict.fromkeys(result.task for result in results):
        own = sorted(map(window_mean, seeds[task]))
        rows.append(
            [f"{task}, author", "12M", "4e-05", f"{number(own[0])} to {number(own[-1])}", "-", "-", "-"]
        )
        if task in author:
            link = f"[{task}, author's code](results/dmc_curves/{task}_author/{AUTHOR_SCORES})"
            last = author[task][0, -1]
            mean = (
                number(window_mean(author[task]))
                if last > WINDOW[1] - ROUND
                else f"last episode at step {last:,.0f}"
            )
            rows.append([link, "1M", "4e-05", mean, "-", "-", "-"])
        for each in (result for result in results if result.task == task):
            score, mean = f"failed with exit code {each.summary['exit_code']}", "-"
            if each.score is not None:
                spread = "" if each.standard_error is None else f" ± {number(each.standard_error)}"
                score, mean = f"{number(each.score)}{spread}", f"**{number(window_mean(episodes_of(each)))}**"
            link = f"[{task}, Reverie](results/dmc_curves/{each.name}/{RUN_FILE})"
            rate = f"{each.run.settings['optimizer.learning_rate']:g}"
            facts = [f"{each.summary['core_hours']:.2f}", f"`{each.training['commit']}`"]
            rows.append([link, "1M", rate, mean, score, *facts])
    head = ["Run", "Parameters", "Learning rate", "Mean return", "Evaluation", "Core-hours", "Commit"]
    return table(head, rows)


def read_long(folder: Path) -> dict[str, list[dict[str, float]]]:
    """Return the lines of each run on the same batches, by the name of its file."""
    runs = {}
    for file in sorted(folder.glob("*.csv")):
        lines = csv.DictReader(file.read_text().splitlines())
        runs[file.stem] = [{name: float(value) for name, value in line.items()} for line in lines]
    return runs


def largest_difference(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Return the largest relative difference between Reverie and the author's code over all seeds."""
    most = max(
        abs(ours[name] / theirs[name] - 1)
        for run, lines in runs.items()
        if run.startswith("reverie")
        for ours, theirs in zip(lines, runs[run.replace("reverie", "author")], strict=True)
        for name in ours
    )
    return f"{most:.1%}".replace("%", " %")


def long_parity(folder: Path) -> dict[str, str]:
    """Return a table of the runs on the same batches, and the largest differences after the fix."""
    runs = read_long(folder)
    programs = {"author": "Author's code", "reverie": "Reverie", "before": "Reverie before the fix"}
    rows = []
    for name in [name for name in runs["author_0"][0] if name != "updates"]:
        cells = []
        for program in programs:
            found = [lines for run, lines in runs.items() if run.startswith(program)]
            values = [line[name] for lines in found for line in lines if line["updates"] == LONG_UPDATES]
            cells.append(", ".join(f"{value:.3g}" for value in values))
        rows.append([name, *cells])
    head = [f"Mean over updates {LONG_UPDATES - 99} to {LONG_UPDATES}", *programs.values()]
    differences = {"most": largest_difference(runs), "half": largest_difference(read_long(folder / HALF))}
    return {"table": table(head, rows)} | differences


def page(folder: Path) -> str:
    """Return the text of the page, with a table and a figure if at least one run has raw data."""
    listed, seeds, results = read_rows(LIST), read_seeds(), read_results(folder, "env.task")
    summary, sections = "The runs are under way, and none is complete yet.", []
    if results:
        summary = first_paragraph(results, seeds)
        sections = [RESULTS_SECTION.format(scores=scores_table(results, seeds, author_runs(folder)))]
    if (folder / f"{COMPARED}_author").is_dir():
        sections.append(AUTHOR_SECTION)
    if (folder.parent / LONG).is_dir():
        sections.append(PARITY_SECTION.format(**long_parity(folder.parent / LONG)))
    command = shlex.join(listed.rows[0].settings)
    protocol = PROTOCOL.format(command=command, episodes=listed.evaluation.episodes)
    return "\n\n".join([HEAD.format(summary=summary), protocol, *sections]) + "\n"


HEAD = """\
<!-- Written by `python -m benchmarks.dmc_page`. Edit that file instead. -->

# DeepMind Control Suite: the author's learning curves

{summary}

```bash
pip install -c constraints.txt -e '.[dmc]'
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
  to 100,000 environment steps. Most points of the author are one episode.
- **Environments**: Reverie has 16, the paper's number, so 16 episodes end every 16,000 environment steps, and
  their returns lag behind the policy. The author's runs seem to have had 8: in tasks with integer rewards,
  only points at 30,000 and 70,000 steps are half-integers, i.e. means of two episodes, so one episode was
  recorded about every 8,000 steps.
- **Evaluation**: mean return of {episodes} fresh episodes after the last step, with the sampled policy. ± is
  the standard error.

```bash
OMP_NUM_THREADS=1 reverie-train {command}
```"""

RESULTS_SECTION = """\
## Results

{scores}

Each gray line is a seed of the author. The other lines are means over the 16 environments of a run, whose
episodes end at the same time.

![Learning curves of each task](figures/dmc_curves.png)"""


AUTHOR_SECTION = """\
## The author's code with the small network

To separate the size of the network from the implementation, the author's code (e3f0224) was trained with the
settings of these runs: the network, the number of environments, the train ratio and the action repeat are the
same. It computes in float32 and uses its own random numbers. One of its updates takes twice as long, so it
was stopped after 32,000 environment steps of cartpole_balance and walker_walk, and 45,500 of reacher_easy.

- **cartpole_balance.** The first two rounds of episodes return 284 and 309 with the author's code, and 293
  and 292 with Reverie. All five seeds with 12 million parameters are higher 8,000 steps later (406 to 568).
  Over 7,000 updates, the value estimates differ by at most 7 %, the reward losses by 3 % and the policy
  entropies by 0.015.
- **reacher_easy.** Two rounds of episodes return 98 (at step 24,500) and 75 (at 40,500) with the author's
  code. Three rounds return 42 (at 16,000), 90 (at 32,000) and 132 (at 48,000) with Reverie. With 12 million
  parameters, four of the author's five seeds return 374 to 954 at step 40,000. The first round of the
  author's code was lost when the run was interrupted, because its environments restart.
- **walker_walk.** Two rounds of episodes return 48.7 and 61.3 with the author's code. Three rounds return
  48.4, 49.9 and 108 (at 48,000) with Reverie. With 12 million parameters, the author's five seeds return 104
  to 195 at step 30,000. Reverie's run predates [the fix](#1500-updates-on-the-same-batches): until update
  2,500, its advantages vary more. Its value estimates are 19 % lower at update 4,500 and 2 % at update 7,000.
- **Likely cause of the slow start.** The paper's learning rate and train ratio belong to a network of four
  times the width. At e3f0224, the author trains the small network with train ratio 1,024 and action repeat 1,
  i.e. with four times as many updates per environment step.

![Training metrics of cartpole_balance in both programs over the number of updates](figures/dmc_training.png)

```bash
make bench-peers
taskset -c 1 .venv-peers-jax/bin/python benchmarks/peers/dreamerv3_run.py <checkout> cartpole_balance <folder>
NPROC=2 .venv-peers-jax/bin/python benchmarks/peers/dreamerv3_run.py <checkout> walker_walk <folder>
```"""

PARITY_SECTION = """\
## 1,500 updates on the same batches

Returns depend on chance. To compare only the updates, both programs start from the same parameters and train
on the same batches, sampled from the author's run of reacher_easy, with 8 windows of 32 steps. They compute
in float32 and sample latents and actions with their own random numbers. One such comparison showed a bug that
five updates could not reveal. Each cell lists seeds 0, 1 and 2 (before the fix: 0 and 1).

{table}

- **Bug.** Predicted rewards and values are means over 255 bins of up to ±4.85e8, so the probabilities of
  mirrored bins must cancel. The gradient of the biases is a sum over rows, and PyTorch adds the last 31 of
  255 columns in another order on a CPU. The biases of mirrored bins, and then their weights, differed in the
  last bit. Predictions were noisy until the probability of distant bins had vanished. In the author's code,
  all of these stay equal, bit for bit.
- **Fix.** Reverie now computes the logits with two products of equal shape
  (`tests/models/test_distributions.py`), and mirrored parameters stay equal. With the same initial
  parameters, each metric's means over 100 updates then differ from the author's by at most {most}. The data
  are in [`long_parity`](results/long_parity). `before_*` was recorded with the previous
  `src/models/heads.py`.
- **bfloat16.** Training runs of Reverie are compiled and compute in bfloat16. Compared in this way with the
  author's code in bfloat16, seed 0 differs by at most {half} ([data](results/long_parity/bfloat16)).
- **Runs.** All training runs on this page predate the fix. After about 1,150 updates of cartpole_balance, the
  policy entropy was 1.308 to 1.318 in four runs of Reverie, and in three of the author's code 1.314
  ([data](results/dmc_curves/cartpole_balance_author/kl_loss.csv)), 1.320 ([this and
  Reverie's](results/dmc_curves/cartpole_balance_author/more_runs.csv)) and 1.324
  ([data](results/dmc_curves/cartpole_balance_author/training.jsonl.zst)).
- **Open.** From 1,250 to 1,500 updates, the KL loss of cartpole_balance is 1 to 4 % lower in Reverie than in
  one run of the author's code. On the same batches, it differs by at most 0.7 % after 1,200 updates, in both
  directions.

```bash
run=<folder of dreamerv3_run.py with reacher_easy>
.venv-peers-jax/bin/python benchmarks/peers/dreamerv3_long.py author $run <folder> 0 float32 <checkout>
.venv/bin/python -m benchmarks.peers.dreamerv3_long reverie $run <folder> 0 float32
```"""


def draw(folder: Path, target: Path) -> None:
    """Draw a panel for each task with its runs over the author's seeds."""
    seeds, author, results = read_seeds(), author_runs(folder), read_results(folder, "env.task")
    tasks = list(dict.fromkeys(result.task for result in results))
    figure = Figure((8, 2.4), layout="constrained")
    for at, task in enumerate(tasks):
        axis = figure.add_subplot(1, max(len(tasks), 2), at + 1)
        for points in seeds[task]:
            axis.plot(*points, color="0.6", linewidth=1, label="author, 12M parameters")
        if task in author:
            axis.plot(*rounds(author[task]), color="C1", linestyle="--", label="author's code, 1M")
        for result in (each for each in results if each.task == task):
            rate = result.run.settings["optimizer.learning_rate"]
            color = "C0" if is_listed(result) else "C2"
            axis.plot(*rounds(episodes_of(result)), color=color, label=f"Reverie, 1M, rate {rate:g}")
        axis.set_title(task, fontsize=10)
        axis.tick_params(labelsize=8)
        axis.set_xticks([0, 50_000, 100_000], ["0", "50k", "100k"])
    labels = {}
    for axis in figure.axes:
        handles, names = axis.get_legend_handles_labels()
        labels |= dict(zip(names, handles, strict=True))
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(target, dpi=200)


def draw_training(folder: Path, target: Path) -> None:
    """Draw the training metrics of the author's code and of Reverie over the number of updates."""
    [result] = [each for each in read_results(folder, "env.task") if each.name == COMPARED]
    lines = [
        line for line in read_lines(folder / f"{COMPARED}_author" / AUTHOR_METRICS) if "train/val" in line
    ]
    figure = Figure((8, 2.2), layout="constrained")
    steps, updates = result.run.logged["train/updates"]
    for at, (name, (theirs, ours)) in enumerate(TRAINING_TAGS.items()):
        axis = figure.add_subplot(1, len(TRAINING_TAGS), at + 1)
        points = [(line["train/opt/updates"], line[theirs]) for line in lines]
        axis.plot(*zip(*points, strict=True), color="C1", linewidth=2, label="author's code")
        logged, values = result.run.logged[ours]
        # Reverie logs the mean since the previous line.
        ends = np.interp(logged, steps, updates)
        begins = np.interp(logged, steps, np.concatenate([[0], updates[:-1]]))
        shown = ends <= points[-1][0]
        axis.plot(((begins + ends) / 2)[shown], values[shown], color="C0", linestyle="--", label="Reverie")
        axis.set_title(name, fontsize=10)
        axis.tick_params(labelsize=8)
        axis.set_xlabel("updates", fontsize=8)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(target, dpi=200)


def rounds(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean frames and returns of the episodes of each round of the environments, (2, n)."""
    # The author counts one step per environment, so the episodes of a round end at different steps.
    starts = np.flatnonzero(np.diff(points[0], prepend=-ROUND) > ROUND / 2)
    return np.array([part.mean(1) for part in np.split(points, starts[1:], axis=1)]).T


@exit_on_user_error()
def main() -> None:
    """Write the page, and the figures if there are results."""
    FlagParser(description=__doc__).parse_args()
    PAGE.write_text(page(RESULTS))
    if results := read_results(RESULTS, "env.task"):
        draw(RESULTS, FIGURE)
    if (RESULTS / f"{COMPARED}_author").is_dir():
        draw_training(RESULTS, TRAINING_FIGURE)
    print(f"{PAGE}: {count_text(len(results), 'run')}")


if __name__ == "__main__":
    main()
