"""Compare runs: reverie-plot <run> [<run> ...] [key=value ...].

  reverie-plot experiments/<run> experiments/<run>       curves of two runs, in report.html
  reverie-plot 'experiments/multirun/*' out=report.png   runs that match a pattern, as an image
  reverie-plot experiments metric=list                   tags that the runs in a folder have logged

Runs that differ only in their seeds form a group. The report shows the interquartile mean over seeds (with
fewer than 4, the mean), its 95 % bootstrap interval, each seed as a thin line, and a table of scores.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ..utils.durable_io import replace_file
from ..utils.errors import UserError, did_you_mean, exit_on_user_error, printable
from ..utils.html_page import document, png, svg, table, tidy
from ..utils.statistics import bootstrap_interval, interquartile_mean
from ..utils.units import count_text
from .comparison import (
    RETURN,
    Axis,
    Group,
    find_runs,
    find_tag,
    group_runs,
    is_evaluation,
    read_run,
    with_returns,
)
from .options import own_settings

_LIST = "list"
_NAME = "reverie-plot"
_HEAD_BYTES = 1000
_TITLE = f"<title>{_NAME}</title>".encode()
_COLORS = ("#2f7fc1", "#d9712b", "#2a9d72", "#c04f8d", "#8a6bd1", "#a3841d", "#1f9fb5", "#c4504a")
_LEGEND = "thin: one seed; band: 95 % interval"
_SCORES = ("group", "IQM", "95 % interval", "mean", "min", "max", "seeds")
_RUNS = ("group", "seed", "score", "steps", "updates", "hours", "folder")
_LENGTHS = {Axis.steps: ",.0f", Axis.updates: ",.0f", Axis.wall: ".3g"}
_NOTES = """<p class='soft'>{repeats}IQM: mean over seeds without the lowest and highest quarter. For fewer
than 4 seeds it is the mean. Thick: IQM where all seeds have values. Band: its 95 % bootstrap interval over
seeds, which is unreliable for fewer than 5. Thin: single seeds, with the mean in each bin of the axis.</p>"""
_STYLE = """
:root { color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9f0; --soft: #9aa4b5; --line: #363d4a; --paper: #1a1e26; --ground: #12151b; }
}
figure { margin: 0; padding: 8px; background: var(--paper); border: 1px solid var(--line); }
svg { display: block; width: 100%; max-width: 900px; height: auto; margin: 0 auto; overflow: visible; }
.scroll + p { margin-top: 8px; }
td:first-child, th:first-child, td:last-child, th:last-child { text-align: left; }
"""


@dataclass(kw_only=True, slots=True)
class PlotConfig:
    """Settings of `reverie-plot`, written as key=value."""

    out: str = "report.html"
    """File to write: a page (.html) or an image (.png). Separate several files with commas, or repeat
    out=."""

    x: Axis = Axis.steps
    """Horizontal axis of the curves. wall means hours, computed from the logged speed."""

    metric: str = RETURN
    """A tag, or parts of one in order (loss/image). return prefers evaluations to episodes, and list prints
    all tags."""

    def __post_init__(self) -> None:
        for path in self.files() if self.metric != _LIST else ():
            if path.suffix not in (".html", ".png") or os.path.isdir(path):
                raise UserError(f"out={path} must be a file that ends in .html or .png.")
            if not os.path.isdir(path.parent):
                raise UserError(f"out={path} cannot be written: {path.parent} is not a folder.")
            if path.suffix == ".html" and os.path.isfile(path) and not _is_ours(path):
                repair = "Set another file, e.g. out=curves.html."
                raise UserError(f"out={path} already exists and is not a page of reverie-plot. {repair}")

    def files(self) -> list[Path]:
        """Return the files to write."""
        return [Path(name) for name in self.out.split(",")]


def _is_ours(path: Path) -> bool:
    """Return whether a file is a page created by this command."""
    with suppress(OSError), path.open("rb") as file:
        return _TITLE in file.read(_HEAD_BYTES)
    return False


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> None:
    """Run `reverie-plot`. The exit code is 2 after a user error. Files are replaced atomically."""
    config, names = _parse(sys.argv[1:] if arguments is None else arguments)
    runs = [read_run(path) for path in find_runs(names)]
    if config.metric == _LIST:
        return print(*map(printable, sorted({tag for run in runs for tag in run.logged})), sep="\n")
    if config.metric == RETURN:
        runs = with_returns(runs)
    tag = find_tag(config.metric, runs)
    groups, differing = group_runs(runs, tag, config.x)
    if len(groups) > len(_COLORS):
        most = count_text(len(_COLORS), "group")
        raise UserError(f"at most {most} can be distinguished (got {len(groups)}). Pass fewer runs.")
    contents: dict[Path, bytes] = {}
    with matplotlib.rc_context({"text.parse_math": False}):
        for path in config.files():
            figure = _figure(groups, tag, config.x)
            is_page = path.suffix == ".html"
            contents[path] = _page(figure, groups, tag, differing) if is_page else png(figure)
    for path, content in contents.items():
        try:
            replace_file(path, [content])
        except OSError as error:
            raise UserError(f"out={path} cannot be written: {error.strerror}.") from error
        print(f"{path}: runs {len(runs)}, groups {len(groups)}, {printable(tag)} against {config.x.value}")


def _parse(arguments: Sequence[str]) -> tuple[PlotConfig, list[str]]:
    """Return the settings and the names of the runs. Names in a multirun may also contain =."""
    known = {field.name for field in fields(PlotConfig)}
    names = [each for each in arguments if each[:1] != "-" and each.partition("=")[0] not in known]
    typed = [each for each in arguments if each not in names]
    if outs := [each.removeprefix("out=") for each in typed if each.startswith("out=")]:
        typed.append(f"out={','.join(outs)}")
    config, _ = own_settings(PlotConfig, typed, "plot", __doc__)
    for key, sign, _ in (name.partition("=") for name in names):
        if sign and (hint := did_you_mean(key, known)):
            raise UserError(f"{key}= is not a setting of plot.{hint}")
    if not names:
        raise UserError("no runs given. Write reverie-plot experiments/<run> (see --help).")
    return config, names


def _figure(groups: Sequence[Group], tag: str, axis: Axis) -> Figure:
    """Draw the curves. The id of a line is `seed` or `group`, and the id of a band is `band`."""
    figure = Figure((7.5, 4 + 0.25 * len(groups)), layout="constrained")
    plot = figure.add_subplot()

    def line(at: NDArray[np.float64], values: NDArray[np.float64], gid: str, **style: Any) -> None:
        # A line with a single position has no length, so it needs a marker.
        marker = "o" if len(np.unique(at[np.isfinite(values)])) == 1 else None
        plot.plot(at, values, marker=marker, gid=gid, **style)

    for color, group in zip(_COLORS, groups, strict=False):
        has_seeds = len(group.rows) > 1
        for row in group.rows if has_seeds else ():
            line(group.grid, row, "seed", color=color, alpha=0.45, linewidth=0.8)
        is_shared = ~np.isnan(group.rows).any(axis=0)
        at, rows = group.grid[is_shared], group.rows[:, is_shared]
        line(at, interquartile_mean(rows), "group", color=color, linewidth=2, label=group.title)
        if has_seeds and len(at):
            low, high = bootstrap_interval(rows)
            outline = np.r_[at, at[::-1]], np.r_[low, high[::-1]]
            plot.fill(*outline, color=color, alpha=0.18, linewidth=0, gid="band")
    tidy(plot)
    plot.set_title(tag, loc="left", fontsize=11)
    plot.set_xlabel(axis.value)
    plot.xaxis.set_major_locator(MaxNLocator(5))
    plot.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    title = _LEGEND if any(len(group.rows) > 1 for group in groups) else None
    figure.legend(loc="outside lower left", fontsize=9, frameon=False, title=title)
    return figure


def _page(figure: Figure, groups: Sequence[Group], tag: str, differing: dict[str, list[str]]) -> bytes:
    scores, runs, repeats = [], [], ""
    for number, group in enumerate(groups, 1):
        all_scores = group.scores
        interval = "{:.4g} to {:.4g}".format(*bootstrap_interval(all_scores)) if len(all_scores) > 1 else "-"
        numbers = (interquartile_mean(all_scores), all_scores.mean(), all_scores.min(), all_scores.max())
        iqm, *others = (f"{value:.4g}" for value in numbers)
        count = str(len(all_scores))
        scores.append([escape(f"{number}. {group.title}"), iqm, interval, *others, count])
        for run, score in zip(group.runs, all_scores, strict=True):
            lengths = (format(run.end(axis), form).replace("nan", "-") for axis, form in _LENGTHS.items())
            folder = escape(printable(str(run.path)))
            runs.append([str(number), str(run.settings["seed"]), f"{score:.4g}", *lengths, folder])
        if len({run.settings["seed"] for run in group.runs}) < len(group.runs):
            repeats += (
                f"A seed occurs several times in group {number} and counts as several seeds, but they are "
                "not independent. "
            )
    final = "last value" if is_evaluation(tag) else "mean of the last 10 % of the values"
    headings = ("setting", *(f"group {number + 1}" for number in range(len(groups))))
    settings = ([escape(printable(text)) for text in (key, *texts)] for key, texts in differing.items())
    heading = "Runs compared" if len(runs) > 1 else "Training run"
    body = [
        f"<h1>{heading}</h1><figure>{svg(figure, tag)}</figure>",
        f"<h2>Final scores: {escape(tag)}, {final}</h2>",
        table(_SCORES, scores),
        _NOTES.format(repeats=repeats),
        "<h2>Runs</h2>",
        table(_RUNS, runs),
        *(["<h2>Settings that differ</h2>", table(headings, settings)] if differing else []),
    ]
    return document(_NAME, body, _STYLE).encode()
