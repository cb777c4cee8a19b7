"""`reverie-plot`: compare runs on a page that opens offline, or as a picture."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

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

_USAGE = """\
Compare runs: reverie-plot <run> [<run> ...] [key=value ...]

  reverie-plot experiments/<run> experiments/<run>       the curves of two runs, in report.html
  reverie-plot 'experiments/multirun/*' out=report.png   runs by a pattern, as a picture
  reverie-plot experiments metric=list                   what the runs below a folder have logged

Runs that differ in nothing but their seeds are one group: a curve of the interquartile mean over the seeds
(of fewer than 4 the mean), its 95 % bootstrap interval, each seed as a thin line, and a table of scores.

"""
_LIST = "list"
_NAME = "reverie-plot"
_HEAD_BYTES = 1000
_TITLE = f"<title>{_NAME}</title>".encode()
_COLOURS = ("#2f7fc1", "#d9712b", "#2a9d72", "#c04f8d", "#8a6bd1", "#a3841d", "#1f9fb5", "#c4504a")
_LEGEND = "thin: one seed; band: 95 % interval"
_COLUMNS = ("group", "IQM", "95 % interval", "mean", "min", "max", "seeds", "steps", "updates", "hours")
_NOTES = """<p class='soft'>{repeats}IQM: the mean over seeds without the lowest and the highest quarter; of
fewer than 4 seeds it is the mean. Thick: the IQM, where every seed has values. Band: its 95 % interval by the
bootstrap over seeds, which says little for fewer than 5. Thin: single seeds, each point the mean in an equal
part of the axis.</p>"""
_STYLE = """
:root { color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9f0; --soft: #9aa4b5; --line: #363d4a; --paper: #1a1e26; --ground: #12151b; }
}
figure { margin: 0; padding: 8px; background: var(--paper); border: 1px solid var(--line); }
svg { width: 100%; max-width: 760px; height: auto; overflow: visible; }
b { display: inline-block; width: 20px; height: 4px; margin-right: 8px; vertical-align: middle; }
td:first-child, th:first-child { text-align: left; }
@media (max-width: 600px) {
  main { padding: 16px 12px; } svg text { font-size: 14px !important; }
  td:first-child { white-space: normal; min-width: 150px; overflow-wrap: anywhere; }
}
"""


@dataclass(kw_only=True, slots=True)
class PlotConfig:
    """Settings of `reverie-plot`, typed as key=value."""

    out: str = "report.html"
    """File to write, a page (.html) or a picture (.png); typed twice, or with a comma between two, both."""

    x: Axis = Axis.steps
    """Axis of the curves; wall is hours, added up from the logged pace."""

    metric: str = RETURN
    """Tag, or parts of it in order (loss/image); return: of evaluations, else of episodes; list: all tags."""

    def __post_init__(self) -> None:
        for path in self.files() if self.metric != _LIST else ():
            if path.suffix not in (".html", ".png") or os.path.isdir(path):
                raise UserError(f"out={path} must be a file that ends in .html or .png.")
            if not os.path.isdir(path.parent):
                raise UserError(f"out={path} cannot be written: {path.parent} is not a folder.")
            if path.suffix == ".html" and os.path.isfile(path) and not _is_ours(path):
                repair = "Name another file, as in out=curves.html."
                raise UserError(f"out={path} is there already, and is no page of reverie-plot. {repair}")

    def files(self) -> list[Path]:
        """Return the files to write."""
        return [Path(name) for name in self.out.split(",")]


def _is_ours(path: Path) -> bool:
    """Return whether a file is a page that this command has made."""
    with suppress(OSError), path.open("rb") as file:
        return _TITLE in file.read(_HEAD_BYTES)
    return False


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> None:
    """Run `reverie-plot`; exit code 2 after a mistake, with nothing half-written."""
    config, names = _parse(sys.argv[1:] if arguments is None else arguments)
    runs = [read_run(path) for path in find_runs(names)]
    if config.metric == _LIST:
        return print(*map(printable, sorted({tag for run in runs for tag in run.logged})), sep="\n")
    if config.metric == RETURN:
        runs = with_returns(runs)
    tag = find_tag(config.metric, runs)
    groups, differing = group_runs(runs, tag, config.x)
    if len(groups) > len(_COLOURS):
        raise UserError(
            f"at most {count_text(len(_COLOURS), 'group')} can be told apart (got {len(groups)}). "
            "Name fewer runs."
        )
    with matplotlib.rc_context({"text.parse_math": False}):
        contents = [
            _page(groups, tag, config.x, differing)
            if path.suffix == ".html"
            else _picture(groups, tag, config.x)
            for path in config.files()
        ]
    for path, content in zip(config.files(), contents, strict=True):
        try:
            replace_file(path, [content])
        except OSError as error:
            raise UserError(f"out={path} cannot be written: {error.strerror}.") from error
        print(f"{path}: runs {len(runs)}, groups {len(groups)}, {printable(tag)} against {config.x.value}")


def _parse(arguments: Sequence[str]) -> tuple[PlotConfig, list[str]]:
    """Return the settings, and the names of runs; of a multirun these may hold a = too."""
    known = {field.name for field in fields(PlotConfig)}
    is_named = [not each.startswith("-") and each.partition("=")[0] not in known for each in arguments]
    names = [each for each, is_name in zip(arguments, is_named, strict=True) if is_name]
    typed = [each for each, is_name in zip(arguments, is_named, strict=True) if not is_name]
    if outs := [each.removeprefix("out=") for each in typed if each.startswith("out=")]:
        typed.append(f"out={','.join(outs)}")
    config, _ = own_settings(PlotConfig, typed, "plot", _USAGE)
    for key, sign, _ in (name.partition("=") for name in names):
        if sign and (hint := did_you_mean(key, known)):
            raise UserError(f"{key}= is not a setting of plot.{hint}")
    if not names:
        raise UserError("no run is named: write reverie-plot experiments/<run>; --help shows more.")
    return config, names


def _figure(groups: Sequence[Group], tag: str, axis: Axis, inches: tuple[float, float]) -> Figure:
    """Draw the curves; the lines of seeds have the id `seed`, those of groups `group`, their bands `band`."""
    figure = Figure(inches, layout="constrained")
    plot = figure.add_subplot()
    for colour, group in zip(_COLOURS, groups, strict=False):
        for row in group.rows if len(group.rows) > 1 else ():
            thin = {"alpha": 0.45, "linewidth": 0.8, "marker": _marker(np.isfinite(row).sum())}
            plot.plot(group.grid, row, color=colour, **thin, gid="seed")
        is_shared = ~np.isnan(group.rows).any(axis=0)
        at, rows = group.grid[is_shared], group.rows[:, is_shared]
        thick = {"linewidth": 2, "marker": _marker(len(at)), "label": group.title}
        plot.plot(at, interquartile_mean(rows), color=colour, **thick, gid="group")
        if len(rows) > 1 and len(at):
            low, high = bootstrap_interval(rows)
            outline = np.r_[at, at[::-1]], np.r_[low, high[::-1]]
            plot.fill(*outline, color=colour, alpha=0.18, linewidth=0, gid="band")
    tidy(plot)
    plot.set_title(tag, loc="left", fontsize=11)
    plot.set_xlabel(axis.value)
    plot.xaxis.set_major_locator(MaxNLocator(5))
    plot.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    return figure


def _marker(points: int) -> str | None:
    """Return the marker of a line, which one point alone would not show."""
    return "o" if points == 1 else None


def _picture(groups: Sequence[Group], tag: str, axis: Axis) -> bytes:
    figure = _figure(groups, tag, axis, (7.5, 4 + 0.25 * len(groups)))
    figure.legend(loc="outside lower left", fontsize=9, frameon=False, title=_legend(groups))
    return png(figure)


def _page(groups: Sequence[Group], tag: str, axis: Axis, differing: dict[str, list[str]]) -> bytes:
    drawing = svg(_figure(groups, tag, axis, (6.6, 3.8)), f"{tag} against {axis.value}")
    final = "last value" if is_evaluation(tag) else "mean of the last 10 % of the values"
    keys = [f"<b style='background: {colour}'></b>" for colour in _COLOURS[: len(groups)]]
    repeats = [
        f"A seed is more than once in group {number}: it counts as several, but they are not independent. "
        for number, group in enumerate(groups, 1)
        if len({run.settings["seed"] for run in group.runs}) < len(group.runs)
    ]
    runs = (
        [f"{key}{number}", str(run.settings["seed"]), f"{score:.4g}", escape(printable(str(run.path)))]
        for number, (key, group) in enumerate(zip(keys, groups, strict=True), 1)
        for run, score in zip(group.runs, group.scores, strict=True)
    )
    body = [
        f"<h1>Runs compared</h1><figure>{drawing}</figure><p>{_legend(groups) or ''}</p>",
        f"<h2>Final scores: {escape(tag)}, {final}</h2>",
        table(_COLUMNS, _scores(groups, keys)),
        _NOTES.format(repeats="".join(repeats)),
        "<h2>Runs</h2>",
        table(("group", "seed", "score", "folder"), runs),
    ]
    if differing:
        numbers = (f"group {number}" for number in range(1, len(groups) + 1))
        rows = ([escape(printable(text)) for text in (key, *texts)] for key, texts in differing.items())
        body += ["<h2>Settings that differ</h2>", table(("setting", *numbers), rows)]
    return document(_NAME, body, _STYLE).encode()


def _legend(groups: Sequence[Group]) -> str | None:
    """Return what the thin lines and the bands are, where there are any."""
    return _LEGEND if any(len(group.rows) > 1 for group in groups) else None


def _scores(groups: Sequence[Group], keys: Sequence[str]) -> Iterator[list[str]]:
    """Yield the cells of each group, in the order of `_COLUMNS`."""
    for number, (key, group) in enumerate(zip(keys, groups, strict=True), 1):
        scores = group.scores
        low, high = bootstrap_interval(scores)
        yield [
            key + escape(f"{number}. {group.title}"),
            f"{interquartile_mean(scores):.4g}",
            f"{low:.4g} to {high:.4g}" if len(scores) > 1 else "-",
            *(f"{value:.4g}" for value in (scores.mean(), scores.min(), scores.max())),
            str(len(scores)),
            _extent(group, Axis.steps, ",.0f"),
            _extent(group, Axis.updates, ",.0f"),
            _extent(group, Axis.wall, ".3g"),
        ]


def _extent(group: Group, axis: Axis, form: str) -> str:
    """Return how far the runs of a group are, from the least to the most; - where one does not log it."""
    try:
        ends = [format(end, form) for end in sorted(run.end(axis) for run in group.runs)]
    except UserError:
        return "-"
    return ends[0] if ends[0] == ends[-1] else f"{ends[0]} to {ends[-1]}"
