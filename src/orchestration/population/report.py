"""The report of a population's run: its fitness and its lineage, drawn on one page that opens offline."""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ...checkpoints.run_folder import LINEAGE_FILE
from ...utils.durable_io import replace_file
from ...utils.html_page import cards, document, image, png, table, tidy
from .lineage import Generations, Place, ancestry, best_place, outcomes, read_lineage

REPORT_FILE = "report.html"
_PAGE_STYLE = ".outcomes td:first-child, .outcomes th:first-child { text-align: left; }"
_OUTCOMES = ("elite", "parent", "discarded")

_DPI, _POINTS_PER_INCH = 110, 72
_INCHES = 10.6  # as wide as the page
_MOST_INCHES = (24.0, 14.0)
_BLUE, _ORANGE, _GREEN, _GREY, _INK = "#0072b2", "#d55e00", "#009e73", "#667085", "#1f2430"

# Of the members that an operator made and the lines to their parents, in the colours of Okabe & Ito, which
# the colour-blind can tell apart.
_STYLES = {
    "initial": (_GREY, "."),
    "elite": (_GREY, "s"),
    "learner": (_BLUE, "D"),
    "injection": ("#56b4e9", "P"),
    "clone": (_GREEN, "o"),
    "mutation": ("#e69f00", "o"),
    "crossover": ("#cc79a7", "^"),
    "other": ("#000000", "x"),
}


def save_population_report(run_dir: Path, num_elites: int) -> Path:
    """Write `report.html` from `lineage.jsonl`, replacing an earlier one; return its path. Cost: about 1 s.

    Raises:
        UserError: If `lineage.jsonl` is missing or has other content; nothing is written then.
    """
    path = run_dir / REPORT_FILE
    text = _page(read_lineage(run_dir / LINEAGE_FILE), num_elites, run_dir.name)
    replace_file(path, [text.encode()])
    return path


def _page(generations: Generations, num_elites: int, name: str) -> str:
    """Return the page of a run of that name."""
    last, ever = generations[-1], "none"
    if best := best_place(generations):
        fitness = generations[best[0]][best[1]].fitness
        ever = f"{fitness:,.4g} (generation {best[0]:,}, member {best[1]:,})"
    finite = [member.fitness for member in last if math.isfinite(member.fitness)]
    undrawn = sum(not math.isfinite(member.fitness) for members in generations for member in members)
    facts = {
        "best fitness ever": ever,
        "generations": f"{len(generations):,}",
        "members": f"{len(last):,}",
        "agent steps": f"{last[0].step:,}",
        "mean fitness of the last generation": f"{sum(finite) / len(finite):,.4g}" if finite else "none",
    }
    body = [
        f"<h1>Population</h1><p class='soft'>{escape(name)}</p>",
        cards(facts),
        "<h2>Fitness</h2>",
        image(_draw_fitness(generations, num_elites), "fitness over agent steps"),
        f"<p>{undrawn:,} not drawn and in no mean: their fitness is NaN or infinite.</p>" if undrawn else "",
        "<h2>Lineage</h2>",
        "<div class='scroll'>",
        image(_draw_lineage(generations), "members by generation, lines to their parents", "width: auto"),
        "</div><p class='soft'>Colour and shape tell which operator made a member, the last one where there "
        "were two. A child that was crossed and mutated is joined to its first parent in the colour of "
        "mutation and to its second parent in that of crossover. The ancestry follows first parents; second "
        "parents on it are marked too.</p>",
        "<h2>Outcome by operator</h2>",
        *_outcome_table(generations, num_elites),
    ]
    return document(f"Population: {name}", body, _PAGE_STYLE)


def _outcome_table(generations: Generations, num_elites: int) -> Iterable[str]:
    """Yield the table of what became of members, by operators."""
    found = outcomes(generations, num_elites)
    if not found:
        yield "<p>Available from generation 3.</p>"
        return
    rows = (
        [
            escape(operators),
            f"{counts.total():,}",
            *(f"{counts[name]:,} ({counts[name] / counts.total():.0%})" for name in _OUTCOMES),
        ]
        for operators, counts in sorted(found.items(), key=lambda item: -item[1].total())
    )
    headings = ["came about by", "members", "became elite", "parent, not elite", "discarded"]
    yield table(headings, rows, "outcomes")
    yield (
        f"<p class='soft'>Became elite: among the fittest {num_elites:,} of its generation. Injection is a "
        "copy of the gradient learner in the place of the worst. The first generation and the last are not "
        "counted: no operator made the one, and nobody was chosen from the other yet.</p>"
    )


def _draw_fitness(generations: Generations, num_elites: int) -> bytes:
    """Return a PNG file: fitness of members, best, mean and elite mean of generations, over agent steps."""
    figure = Figure(figsize=(_INCHES, 4.2), dpi=_DPI, layout="constrained")
    axis = figure.add_subplot()
    tidy(axis)
    steps = np.array([members[0].step for members in generations], dtype=float)
    fitness = [
        np.sort([member.fitness for member in members if math.isfinite(member.fitness)])[::-1]
        for members in generations
    ]

    def over(statistic: Callable[[NDArray[np.float64]], float]) -> NDArray[np.float64]:
        return np.array([statistic(each) if len(each) else math.nan for each in fitness])

    every = np.repeat(steps, [len(each) for each in fitness])
    axis.scatter(every, np.concatenate(fitness), s=9, color=_GREY, alpha=0.3, linewidth=0, label="member")
    best, elite = over(lambda each: each[0]), over(lambda each: each[:num_elites].mean())
    marker = "o" if len(generations) < 3 else ""
    for label, values, colour, style, drawn in (
        ("best ever", np.fmax.accumulate(best), _INK, "--", "steps-post"),
        ("best", best, _BLUE, "-", "default"),
        (f"elite mean (fittest {num_elites})", elite, _ORANGE, "-", "default"),
        ("mean", over(np.mean), _GREEN, "-", "default"),
    ):
        axis.plot(
            steps, values, style, marker=marker, color=colour, label=label, linewidth=1.8, drawstyle=drawn
        )
    axis.set_xlabel("agent steps at the end of the generation, of all members together")
    axis.set_ylabel("fitness: mean episode return")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, min_n_ticks=1))
    axis.margins(x=0.01)
    figure.legend(loc="outside upper left", ncols=5, frameon=False)
    return png(figure)


def _draw_lineage(generations: Generations) -> bytes:
    """Return a PNG file: members by generation, lines to their parents, the ancestry of the best ever."""
    num_generations, num_members = len(generations), len(generations[0])
    width = min(_MOST_INCHES[0], max(_INCHES, 1.4 + 0.2 * num_generations))
    height = min(_MOST_INCHES[1], 1.5 + 0.3 * max(4, num_members))
    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    axis = figure.add_subplot()
    pitch = min((width - 1.4) / num_generations, (height - 1.5) / num_members) * _POINTS_PER_INCH
    dot = min(8.0, 0.45 * pitch)
    handles = _draw_members(axis, generations, dot)
    if best := best_place(generations):
        handles.append(_draw_ancestry(axis, ancestry(generations, best), best, dot))
    axis.set_xlim(-0.7, num_generations - 0.3)
    axis.set_ylim(num_members - 0.4, -0.6)
    axis.set_xlabel("generation")
    axis.set_ylabel("member")
    axis.xaxis.set_major_locator(MaxNLocator(nbins=25, integer=True, min_n_ticks=1))
    numbers = MaxNLocator(nbins=num_members, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
    axis.yaxis.set_major_locator(numbers)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False)
    return png(figure)


def _draw_members(axis: Axes, generations: Generations, dot: float) -> list[Line2D]:
    """Draw members and the lines to their parents; return an entry of the legend for each operator drawn."""
    lines: dict[str, list[tuple[Place, Place]]] = {}
    dots: dict[str, list[Place]] = {}
    for generation, members in enumerate(generations):
        for index, member in enumerate(members):
            operators = [name if name in _STYLES else "other" for name in member.origin.operators]
            dots.setdefault(operators[-1], []).append((generation, index))
            for parent, operator in zip(member.origin.parents, (operators[-1], operators[0]), strict=False):
                lines.setdefault(operator, []).append(((generation - 1, parent), (generation, index)))
    for operator, pairs in lines.items():
        colour, _ = _STYLES[operator]
        axis.add_collection(LineCollection(pairs, colors=colour, linewidths=0.9, alpha=0.55, zorder=1))
    for operator, places in dots.items():
        colour, marker = _STYLES[operator]
        axis.scatter(*zip(*places, strict=True), s=dot**2, c=colour, marker=marker, zorder=3)
    return [
        Line2D([], [], linewidth=1.2 * (name != "initial"), color=colour, marker=marker, label=name)
        for name, (colour, marker) in _STYLES.items()
        if name in dots or name in lines
    ]


def _draw_ancestry(axis: Axes, pairs: Sequence[tuple[Place, Place]], best: Place, dot: float) -> Line2D:
    """Draw the line of the best member's ancestors and a star at it; return its entry in the legend."""
    axis.add_collection(LineCollection(pairs, colors=_INK, linewidths=2.4, zorder=2))
    places = sorted({place for pair in pairs for place in pair} - {best})
    if places:
        axis.scatter(
            *zip(*places, strict=True), s=(1.5 * dot) ** 2, facecolors="none", edgecolors=_INK, zorder=4
        )
    axis.scatter(*best, s=(2.4 * dot) ** 2, c=_INK, marker="*", edgecolors="white", linewidths=0.8, zorder=5)
    return Line2D(
        [], [], color=_INK, linewidth=2.4, marker="*", markersize=11, label="best ever, its ancestry"
    )
