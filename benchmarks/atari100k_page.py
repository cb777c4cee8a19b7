"""Write docs/benchmarks.md, its figure and the table of README.md: python -m benchmarks.atari100k_page.

Runs come from `docs/results/atari100k`, baselines from `benchmarks/atari100k_baselines.csv`, and the author's
curves from the package. A game appears on the page once one of its runs has raw data.
"""

import csv
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.published_curves import AGENT, published_bands
from benchmarks.queue.jobs import EVALUATION_FILE, RUN_FILE
from benchmarks.queue.rows import read_rows
from reverie.commands.comparison import Run, read_run
from reverie.envs.episodes import Episode
from reverie.orchestration.on_track.instrument import LastEpisodes
from reverie.utils.durable_io import read_json
from reverie.utils.errors import FlagParser, exit_on_user_error
from reverie.utils.statistics import bootstrap_interval, interquartile_mean
from reverie.utils.units import count_text

ROOT = Path(__file__).parents[1]
LIST = ROOT / "benchmarks" / "atari100k.yaml"
BASELINES = ROOT / "benchmarks" / "atari100k_baselines.csv"
RESULTS = ROOT / "docs" / "results" / "atari100k"
PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
FIGURE = ROOT / "docs" / "figures" / "atari100k.png"
RANDOM, HUMAN, NATURE, OURS = "random", "human", "dreamerv3_nature", "reverie"
AGENTS = {
    NATURE: AGENT,
    "dreamerv3_2023": "DreamerV3 (2023)",
    "easimulus": "EASimulus",
    OURS: "Reverie",
}
"""Compared agents, in column order. The scores of all but the last one come from the baselines."""

REASONS = {
    "alien": "the agent collects the eggs near its start and then hardly any others",
    "bank_heist": "its policy loses most of its entropy while it robs one bank per game",
    "hero": "the agent loses all lives in the first room of the third level",
}
"""Observations in played episodes of games below all seeds of DreamerV3 (Nature). Written by hand."""

STATISTICS = {"Mean": np.mean, "Median": np.median, "IQM": interquartile_mean}
PANELS_PER_ROW, GAMES_IN_README = 4, 12
WIDTH = 110
README_TABLE = re.compile(r"^\| Atari-100k.*\n(\|.*\n)*", re.MULTILINE)

Scores = Mapping[str, Mapping[str, float]]
"""Score of each agent by game."""


@dataclass(frozen=True, slots=True)
class Result:
    """Raw data of a run."""

    name: str
    task: str
    seed: int
    score: float | None
    """Mean return of the evaluation, or `None` if training failed."""

    standard_error: float | None
    summary: Mapping[str, Any]
    """Contents of `run.json`."""

    run: Run

    @property
    def training(self) -> Mapping[str, Any]:
        """Facts about the last training session and its machine."""
        return [session for session in self.summary["sessions"] if session["what"] == "training"][-1]


def read_results(folder: Path, setting: str = "env.game") -> list[Result]:
    """Return the runs with raw data in a folder, sorted by task (the value of `setting`) and seed."""
    found = []
    for file in folder.glob(f"*/{RUN_FILE}"):
        run, evaluation = read_run(file.parent), file.with_name(EVALUATION_FILE)
        played = read_json(evaluation) if evaluation.exists() else {}
        scores = played.get("mean"), played.get("standard_error")
        task, seed = run.settings[setting], run.settings["seed"]
        found.append(Result(file.parent.name, task, seed, *scores, read_json(file), run))
    return sorted(found, key=lambda result: (result.task, result.seed))


def read_baselines() -> dict[str, dict[str, float]]:
    """Return the baselines by game and column."""
    lines = (line for line in BASELINES.read_text().splitlines() if not line.startswith("#"))
    rows = list(csv.DictReader(lines))
    return {row.pop("game"): {name: float(score) for name, score in row.items()} for row in rows}


def with_ours(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Return all agents' scores for the games with raw data. A failed run gets the random agent's score."""
    found = {}
    for game, row in read_baselines().items():
        scores = [row[RANDOM] if each.score is None else each.score for each in of_game(results, game)]
        if scores:
            found[game] = {**row, OURS: float(np.mean(scores))}
    return found


def of_game(results: Iterable[Result], game: str) -> list[Result]:
    """Return the results of a game."""
    return [result for result in results if result.task == game]


def normalized(scores: Scores, agent: str) -> NDArray[np.float64]:
    """Return an agent's human-normalized score in each game. 0 is random and 1 is human."""
    rows = [(row[agent], row[RANDOM], row[HUMAN]) for row in scores.values()]
    score, random, human = np.array(rows).T
    return (score - random) / (human - random)


def title(game: str) -> str:
    """Return the display name of a game, such as BankHeist."""
    return "".join(map(str.capitalize, game.split("_")))


def number(score: float) -> str:
    """Format a score."""
    return f"{score:,.0f}" if abs(score) >= 100 else f"{score:.1f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def games_table(results: Sequence[Result], scores: Scores) -> str:
    """Return a table with a row of scores for each game."""
    rows = []
    for game, row in scores.items():
        own = of_game(results, game)
        failed = sum(each.score is None for each in own)
        ours = number(row[OURS]) + (f" ({failed} of {count_text(len(own), 'run')} failed)" if failed else "")
        others = [number(row[name]) for name in (RANDOM, HUMAN, *AGENTS) if name != OURS]
        rows.append([title(game), *others, f"**{ours}**", str(len(own))])
    return table(["Game", "Random", "Human", *AGENTS.values(), "Seeds of Reverie"], rows)


def readme_table(results: Sequence[Result]) -> str:
    """Return a table of the first games of the list that have raw data, with a column for each game."""
    scores = with_ours(results)
    listed = dict.fromkeys(row.name.partition("_seed_")[0] for row in read_rows(LIST).rows)
    games = [game for game in listed if game in scores][:GAMES_IN_README]
    head = [f"Atari-100k, {len(games)} of {count_text(len(read_baselines()), 'game')}", *map(title, games)]
    labels = {OURS: "Reverie, on one CPU core", NATURE: f"{AGENT}, on a GPU"}
    rows = [[label, *(number(scores[game][agent]) for game in games)] for agent, label in labels.items()]
    return f"{table(head, rows)}\n"


def aggregates_table(scores: Scores) -> str:
    """Return a table of each agent's human-normalized aggregates over these games."""
    columns = {agent: normalized(scores, agent) for agent in AGENTS}
    rows = []
    for name, statistic in STATISTICS.items():
        ends = {agent: bootstrap_interval(each, statistic) for agent, each in columns.items()}
        cells = (
            "{:.2f} ({:.2f} to {:.2f})".format(statistic(columns[agent]), *ends[agent]) for agent in AGENTS
        )
        rows.append([name, *cells])
    rows.append(["Games at or above human", *(str(int((each >= 1).sum())) for each in columns.values())])
    return table(["Human-normalized score", *AGENTS.values()], rows)


def runs_table(results: Sequence[Result]) -> str:
    """Return a table with each run's score, cost and command."""
    rows = []
    for each in results:
        score = f"failed with exit code {each.summary['exit_code']}"
        if each.score is not None:
            spread = "" if each.standard_error is None else f" ± {number(each.standard_error)}"
            score = f"{number(each.score)}{spread}"
        facts = [f"{each.summary['steps']:,}", f"{each.summary['core_hours']:.2f}"]
        machine = [each.training["cpu"], f"`{each.training['commit']}`"]
        command = f"`reverie-train {shlex.join(each.summary['arguments'])}`"
        rows.append(
            [f"[{each.name}](results/atari100k/{each.name}/{RUN_FILE})", score, *facts, *machine, command]
        )
    return table(["Run", "Score", "Agent steps", "Core-hours", "CPU", "Commit", "Command"], rows)


def first_paragraph(results: Sequence[Result], scores: Scores, games: int) -> str:
    """Return a paragraph on the number of games, games with lower scores, failed runs and the cost."""
    lost = [game for game, row in scores.items() if row[OURS] < row[NATURE]]
    below = [game for game in lost if scores[game][OURS] < scores[game]["nature_low"]]
    within = [game for game in lost if game not in below]
    hours = sum(each.summary["core_hours"] for each in results)
    failed = [each.name for each in results if each.score is None]
    sentences = [
        f"Raw data exists for {len(scores)} of {count_text(games, 'game')}.",
        f"Reverie scores lower than {AGENT} in {len(lost)} of them.",
        *([f"Lower, but in the range of the five seeds: {next_to_seeds(scores, within)}."] if within else []),
        *([f"Lower than all five seeds: {next_to_seeds(scores, below)}."] if below else []),
        *([f"Failed: {', '.join(failed)}. A failed run has the score of random."] if failed else []),
        f"{count_text(len(results), 'run')} used {hours:.1f} core-hours.",
    ]
    return fill(" ".join(sentences), WIDTH, break_long_words=False, break_on_hyphens=False)


def next_to_seeds(scores: Scores, games: Iterable[str]) -> str:
    """Return the games with Reverie's score, the range of DreamerV3's seeds, and an observation, if any."""
    texts = []
    for game in games:
        ours, low, high = (number(scores[game][name]) for name in (OURS, "nature_low", "nature_high"))
        reason = f": {REASONS[game]}" if game in REASONS else ""
        texts.append(f"{title(game)} ({ours}, seeds {low} to {high}{reason})")
    return ", ".join(texts)


def page(results: Sequence[Result]) -> str:
    """Return the text of the page, with tables and a figure if at least one run has raw data."""
    listed, scores = read_rows(LIST), with_ours(results)
    games = len(read_baselines())
    summary = "The runs are under way, and none is complete yet. This page lists each game that has raw data."
    sections = []
    if results:
        summary = first_paragraph(results, scores, games)
        sections = [
            SCORES.format(aggregates=aggregates_table(scores), games=games_table(results, scores)),
            CURVES,
            RUNS.format(runs=runs_table(results)),
        ]
    most, episodes = listed.evaluation.max_frames, listed.evaluation.episodes
    assert most is not None
    limits = {"episodes": episodes, "frames": f"{most:,}", "steps": most // 4}
    head = HEAD.format(summary=summary, rows=len(listed.rows), games=games)
    return "\n\n".join([head, PROTOCOL.format(**limits), *sections, SOURCES]) + "\n"


HEAD = """\
<!-- Written by `python -m benchmarks.atari100k_page`. Edit that file instead. -->

# Atari-100k on one CPU core

{summary}

```bash
python -m benchmarks.queue runs=../runs core=1       # train and evaluate every run
python -m benchmarks.queue runs=../runs show=true    # show the state of each run
python -m benchmarks.atari100k_page                  # regenerate this page
```

The list has {rows} runs: one seed of each of the {games} games in a seeded random order, and two more seeds
of Pong. All games use the settings of `experiment=fast_atari100k`. These settings come from
`dreamer_ataripong`, which was tuned on Pong. One run on Breakout (`benchmarks/atari100k_choice.yaml`)
confirmed them before they were frozen, and no other game was tuned. All runs were trained before a [bug in
the reward and value heads](dmc.md#1500-updates-on-the-same-batches) was fixed."""

PROTOCOL = """\
## Protocol

- **Environment**: 100,000 agent steps (400,000 frames), frame skip 4, up to 30 no-ops at the start of an
  episode, no sticky actions, the game's own action set, and RGB images of 64 x 64 pixels.
- **Score of Reverie**: mean return of {episodes} fresh episodes after the last step, with the sampled policy
  and at most {frames} frames each. ± is the standard error over these episodes.
- **Score of DreamerV3 (Nature)**: mean return of the training episodes that end after 390,000 frames, or of
  the last episode if a seed has no such episode. The five seeds use a model with 200 million parameters,
  trained on a GPU. Evaluations with fresh episodes and training episodes are not the same measurement.
- **Other agents**: as published, five seeds. EASimulus has the highest mean and IQM of the world-model agents
  without search that we found. Agents that search score higher.
- **Core-hours**: CPU time of the training processes of a run on one core.

```bash
OMP_NUM_THREADS=1 reverie-train experiment=fast_atari100k env.game=alien seed=1 device=cpu
reverie-evaluate run=<run> episodes={episodes} policy=sample max_steps={steps} device=cpu
```"""

SCORES = """\
## Scores

All agents are compared on the same games. Intervals are 95 % bootstrap intervals over these games. The IQM is
the mean over the games without the lowest and highest quarter.

{aggregates}

{games}"""

CURVES = """\
## Learning curves

The figure shows the mean return of the last 16 training episodes over frames. Blue lines are seeds of
Reverie. Gray shows the mean, minimum and maximum of five seeds of DreamerV3 (Nature).

![Learning curves of each game](figures/atari100k.png)

```bash
reverie-plot docs/results/atari100k/<game>_seed_* x=frames out=report.html
```

A run logs its position relative to the gray band: [on track](results/README.md#on-track-published-curves)."""

RUNS = """\
## Runs

{runs}"""

SOURCES = """\
## Sources

`benchmarks/atari100k_baselines.csv` contains the baselines and the repository, commit and file of each
column. `python -m benchmarks.published_curves <clone>` builds the author's curves from the score files of
[danijar/dreamerv3](https://github.com/danijar/dreamerv3)."""


def curve_of(run: Run) -> NDArray[np.float64]:
    """Return the frames, and the mean return of the latest episodes, at the end of each episode, (n, 2)."""
    repeat = run.settings["env.action_repeat"]
    last, means = LastEpisodes(repeat * run.settings["env.num_envs"]), []
    steps, returns = run.logged["episode/return"]
    for step, episode_return, length in zip(steps, returns, run.logged["episode/length"][1], strict=True):
        last.add(Episode(0, episode_return, int(length)), step * repeat)
        means.append(last.mean())
    return np.array([mean for mean in means if mean is not None]).reshape(-1, 2)


def draw(results: Sequence[Result], target: Path) -> None:
    """Draw a panel with the seeds of each game over the author's band."""
    suite = published_bands()["atari100k"]
    games = list(dict.fromkeys(result.task for result in results))
    rows = -(-len(games) // PANELS_PER_ROW)
    figure = Figure((8, 2 * rows), layout="constrained")
    panels = [figure.add_subplot(rows, PANELS_PER_ROW, at + 1) for at in range(rows * PANELS_PER_ROW)]
    for axis, game in zip(panels, games, strict=False):
        band = suite["tasks"][game]
        frames = np.arange(len(band["mean"])) * suite["frames_between_points"]
        axis.fill_between(frames, band["low"], band["high"], color="0.5", alpha=0.3, linewidth=0)
        axis.plot(frames, band["mean"], color="0.5")
        for result in of_game(results, game):
            axis.plot(*curve_of(result.run).T, color="C0")
        axis.set_title(title(game), fontsize=10)
        axis.tick_params(labelsize=8)
        axis.set_xticks([0, 200_000, 400_000], ["0", "200k", "400k"])
    for axis in panels[len(games) :]:
        axis.axis("off")
    figure.savefig(target, dpi=200)


@exit_on_user_error()
def main() -> None:
    """Write the page, and the figure if there are results."""
    FlagParser(description=__doc__).parse_args()
    results = read_results(RESULTS)
    PAGE.write_text(page(results))
    if results:
        README.write_text(README_TABLE.sub(lambda _: readme_table(results), README.read_text()))
        draw(results, FIGURE)
    print(f"{PAGE}: {count_text(len(results), 'run')}")


if __name__ == "__main__":
    main()
