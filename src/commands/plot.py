"""Compare runs: reverie-plot <run> [<run> ...] [key=value ...].

  reverie-plot experiments/<run> experiments/<run>       curves of two runs, in report.html
  reverie-plot 'experiments/*-multirun/*' out=report.pdf  runs that match a pattern, as a figure
  reverie-plot experiments metric=list                   tags that the runs in a folder have logged

Runs that differ only in their seeds form a group. The report shows the interquartile mean over seeds (with
fewer than 4, the mean), its 95 % bootstrap interval, each seed as a thin line, and a table of scores.
"""

import csv
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import Enum
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
from ..utils.html_page import document, svg, table, tidy, video
from ..utils.statistics import bootstrap_interval, interquartile_mean, optimality_gap, performance_profile
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
# Files without dates are equal for equal runs.
_PICTURES = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
_FILES = ".html, .png, .pdf, .svg or .csv"
_DREAMS = "videos/open_loop_*.mp4"
_ROWS = "From top to bottom: the game, its prediction (imagined under the red bar), and the error."
_PROFILE_POINTS = 101
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
svg, video { display: block; width: 100%; max-width: 900px; height: auto; margin: 0 auto; overflow: visible; }
.scroll + p { margin-top: 8px; }
td:first-child, th:first-child, td:last-child, th:last-child { text-align: left; }
"""


class Draw(Enum):
    """Content of a figure."""

    curves = "curves"
    profile = "profile"


@dataclass(frozen=True, slots=True)
class Curve:
    """Values of a group along the horizontal axis, with the end points of their interval."""

    title: str

    grid: NDArray[np.float64]
    """Positions (G,) of the seeds."""

    rows: NDArray[np.float64]
    """Values (seeds, G), NaN outside of a seed's range."""

    at: NDArray[np.float64]
    """Positions (P,) at which all seeds have values."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(kw_only=True, slots=True)
class PlotConfig:
    """Settings of `reverie-plot`, written as key=value."""

    out: str = "report.html"
    """File to write: a page (.html), a figure (.png, .pdf or .svg) or its data (.csv). Separate several files
    with commas, or repeat out=."""

    x: Axis = Axis.steps
    """Horizontal axis of the curves. wall means hours, computed from the logged speed."""

    metric: str = RETURN
    """A tag, or parts of a tag in order (loss/image). return means evaluations if all runs have them,
    otherwise episodes, or the best fitness per generation of a population. list prints all tags."""

    draw: Draw = Draw.curves
    """Content of figures and data. profile is the share of seeds above each final score. A page has both."""

    title: str | None = None
    """Title of the figure, or null for the label of the vertical axis."""

    xlabel: str | None = None
    """Label of the horizontal axis of the figure, or null for the default."""

    ylabel: str | None = None
    """Label of the vertical axis of the figure, or null for the default."""

    labels: str | None = None
    """Names of the groups, in order and separated by commas, or null for their settings."""

    target: float | None = None
    """Score that solves the task, for the optimality gap: the mean amount by which seeds fall short of it."""

    def __post_init__(self) -> None:
        for path in self.files() if self.metric != _LIST else ():
            if path.suffix not in (*_PICTURES, ".html", ".csv") or os.path.isdir(path):
                raise UserError(f"out={path} must be a file that ends in {_FILES}.")
            if not os.path.isdir(path.parent):
                raise UserError(f"out={path} cannot be written: {path.parent} is not a folder.")
            if path.suffix == ".html" and os.path.isfile(path) and not _is_ours(path):
                repair = "Choose another file, e.g. out=curves.html."
                raise UserError(f"out={path} already exists and was not written by reverie-plot. {repair}")

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
        raise UserError(f"a plot can show at most {most} (got {len(groups)}). Pass fewer runs.")
    titles = _titles(groups, config.labels)
    drawn = {Draw.curves: _curves(groups, titles), Draw.profile: _profiles(groups, titles)}
    contents: dict[Path, bytes] = {}
    with matplotlib.rc_context({"text.parse_math": False}):
        for path in config.files():
            if path.suffix == ".csv":
                contents[path] = _csv(drawn[config.draw], _axes(config.draw, tag, config.x)[0])
            elif path.suffix == ".html":
                contents[path] = _page(drawn, groups, titles, config, tag, differing)
            else:
                figure = _figure(drawn[config.draw], config.draw, config, tag)
                contents[path] = _picture(figure, path.suffix, tag)
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
    config, _ = own_settings(PlotConfig, typed, "reverie-plot", __doc__)
    for key, sign, _ in (name.partition("=") for name in names):
        if sign and (hint := did_you_mean(key, known)):
            raise UserError(f"{key}= is not a setting of reverie-plot.{hint}")
    if not names:
        raise UserError("no runs given. Write reverie-plot experiments/<run> (see --help).")
    return config, names


def _titles(groups: Sequence[Group], labels: str | None) -> list[str]:
    """Return the name of each group. Raise a `UserError` if the number of labels is wrong."""
    if labels is None:
        return [group.title for group in groups]
    names = [name.strip() for name in labels.split(",")]
    if len(names) != len(groups):
        found = "; ".join(group.title for group in groups)
        given, needed = count_text(len(names), "name"), count_text(len(groups), "group")
        raise UserError(f"labels={labels} has {given} for {needed} ({found}). Give one name for each.")
    return [printable(name) for name in names]


def _curves(groups: Sequence[Group], titles: Sequence[str]) -> list[Curve]:
    """Return the interquartile mean of each group where all of its seeds have values."""
    curves = []
    for title, group in zip(titles, groups, strict=True):
        is_shared = ~np.isnan(group.rows).any(axis=0)
        rows = group.rows[:, is_shared]
        interval = bootstrap_interval(rows) if rows.size else (rows[0], rows[0])
        value, at = interquartile_mean(rows), group.grid[is_shared]
        curves.append(Curve(title, group.grid, group.rows, at, value, *interval))
    return curves


def _profiles(groups: Sequence[Group], titles: Sequence[str]) -> list[Curve]:
    """Return the share of each group's seeds above each score."""
    scores = np.concatenate([group.scores for group in groups])
    at = np.linspace(scores.min(), scores.max(), _PROFILE_POINTS if np.ptp(scores) else 1)
    profiles = []
    for title, group in zip(titles, groups, strict=True):
        rows = group.scores[:, None]
        low, high = bootstrap_interval(rows, lambda drawn, axis: performance_profile(drawn[..., 0], at, axis))
        value = performance_profile(group.scores, at)
        profiles.append(Curve(title, at, np.empty((0, len(at))), at, value, low, high))
    return profiles


def _axes(draw: Draw, tag: str, axis: Axis) -> tuple[str, str]:
    """Return the names of the horizontal and the vertical axis."""
    return (axis.value, tag) if draw is Draw.curves else (f"{tag} (final score)", "share of seeds above")


def _figure(curves: Sequence[Curve], draw: Draw, config: PlotConfig, tag: str) -> Figure:
    """Draw curves. The id of a line is `seed` or `group`, and the id of a band is `band`."""
    figure = Figure((7.5, 4 + 0.25 * len(curves)), layout="constrained")
    plot = figure.add_subplot()

    def line(at: NDArray[np.float64], values: NDArray[np.float64], gid: str, **style: Any) -> None:
        # A line with a single position has no length, so it needs a marker.
        marker = "o" if len(np.unique(at[np.isfinite(values)])) == 1 else None
        plot.plot(at, values, marker=marker, gid=gid, **style)

    for color, curve in zip(_COLORS, curves, strict=False):
        for row in curve.rows if len(curve.rows) > 1 else ():
            line(curve.grid, row, "seed", color=color, alpha=0.45, linewidth=0.8)
        line(curve.at, curve.value, "group", color=color, linewidth=2, label=curve.title)
        if len(curve.rows) != 1 and len(curve.at):
            outline = np.r_[curve.at, curve.at[::-1]], np.r_[curve.low, curve.high[::-1]]
            plot.fill(*outline, color=color, alpha=0.18, linewidth=0, gid="band")
    tidy(plot)
    across, upwards = _axes(draw, tag, config.x)
    if draw is config.draw:
        across, upwards = config.xlabel or across, config.ylabel or upwards
    # Without its own name, the vertical axis is named by the title.
    is_named = bool(config.title or config.ylabel)
    plot.set_title(printable((config.title or "") if is_named else upwards), loc="left", fontsize=11)
    plot.set(xlabel=printable(across), ylabel=printable(upwards) if is_named else "")
    plot.xaxis.set_major_locator(MaxNLocator(5))
    plot.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    title = _LEGEND if any(len(curve.rows) > 1 for curve in curves) else None
    figure.legend(loc="outside lower left", fontsize=9, frameon=False, title=title)
    return figure


def _picture(figure: Figure, suffix: str, salt: str) -> bytes:
    """Return the figure as a file. Equal figures give the same bytes."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        figure.savefig(buffer, format=suffix[1:], metadata=_PICTURES[suffix])
    return buffer.getvalue()


def _csv(curves: Sequence[Curve], axis: str) -> bytes:
    """Return a row for each position of a group (without a seed) and of its seeds (numbered from 1)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("group", "seed", axis, "value", "low", "high"))
    for curve in curves:
        rows = zip(curve.at, curve.value, curve.low, curve.high, strict=True)
        writer.writerows((curve.title, "", *map(float, row)) for row in rows)
        for number, values in enumerate(curve.rows, 1):
            known = np.isfinite(values)
            pairs = zip(curve.grid[known].tolist(), values[known].tolist(), strict=True)
            writer.writerows((curve.title, number, *pair, "", "") for pair in pairs)
    return text.getvalue().encode()


def _page(
    drawn: dict[Draw, list[Curve]],
    groups: Sequence[Group],
    titles: Sequence[str],
    config: PlotConfig,
    tag: str,
    differing: dict[str, list[str]],
) -> bytes:
    scores, runs, repeats = [], [], ""
    for number, group in enumerate(groups, 1):
        all_scores = group.scores
        interval = "{:.4g} to {:.4g}".format(*bootstrap_interval(all_scores)) if len(all_scores) > 1 else "-"
        numbers = (interquartile_mean(all_scores), all_scores.mean(), all_scores.min(), all_scores.max())
        iqm, *others = (f"{value:.4g}" for value in numbers)
        count = str(len(all_scores))
        gap = [] if config.target is None else [f"{optimality_gap(all_scores, config.target):.4g}"]
        scores.append([escape(f"{number}. {titles[number - 1]}"), iqm, interval, *others, *gap, count])
        for run, score in zip(group.runs, all_scores, strict=True):
            lengths = (format(run.end(axis), form).replace("nan", "-") for axis, form in _LENGTHS.items())
            folder = escape(printable(str(run.path)))
            runs.append([str(number), str(run.settings["seed"]), f"{score:.4g}", *lengths, folder])
        if len({run.settings["seed"] for run in group.runs}) < len(group.runs):
            repeats += f"A seed occurs several times in group {number}, so the band is too narrow. "
    final = "last value" if is_evaluation(tag) else "mean of the last 10 % of the values"
    headings = ("setting", *(f"group {number + 1}" for number in range(len(groups))))
    settings = ([escape(printable(text)) for text in (key, *texts)] for key, texts in differing.items())
    heading = printable(config.title or ("Runs compared" if len(runs) > 1 else "Training run"))
    columns: list[str] = [*_SCORES]
    if config.target is not None:
        columns.insert(-1, f"optimality gap to {config.target:g}")
    figures = {
        draw: svg(_figure(curves, draw, config, tag), f"{tag} {draw.value}") for draw, curves in drawn.items()
    }
    # A video is a file of `Reports.animation`, and the last one is the newest.
    dreams = sorted(groups[0].runs[0].path.glob(_DREAMS))[-1:] if len(runs) == 1 else []
    shown = [f"<h2>Dream</h2><figure>{video(path.read_bytes(), _ROWS)}</figure>" for path in dreams]
    body = [
        f"<h1>{escape(heading)}</h1><figure>{figures[Draw.curves]}</figure>",
        *shown,
        f"<h2>Final scores: {escape(tag)}, {final}</h2>",
        table(columns, scores),
        _NOTES.format(repeats=repeats),
        *([f"<h2>Performance profile</h2><figure>{figures[Draw.profile]}</figure>"] if len(runs) > 1 else []),
        "<h2>Runs</h2>",
        table(_RUNS, runs),
        *(["<h2>Settings that differ</h2>", table(headings, settings)] if differing else []),
    ]
    return document(_NAME, body, _STYLE).encode()
