"""Draw a population's run: its fitness and its lineage."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ...utils.figures import png, tidy, with_commas
from .ancestry import Generations, Place, ancestry, best_place

Values = NDArray[np.float64]

_DPI = 110
_POINTS_PER_INCH = 72
_INCHES = 10.6  # as wide as the page
_MOST_INCHES = (24.0, 14.0)
_BLUE, _ORANGE, _INK = "#0072b2", "#d55e00", "#1f2430"


@dataclass(frozen=True, slots=True)
class _MarkerStyle:
    """Style of members that an operator made, and of the lines to their parents."""

    colour: str
    marker: str


# The colours are those of Okabe & Ito, which the colour-blind can tell apart; shapes tell the same.
_STYLES = {
    "initial": _MarkerStyle("#667085", "."),
    "elite": _MarkerStyle("#667085", "s"),
    "learner": _MarkerStyle("#0072b2", "D"),
    "injection": _MarkerStyle("#56b4e9", "P"),
    "clone": _MarkerStyle("#009e73", "o"),
    "mutation": _MarkerStyle("#e69f00", "o"),
    "crossover": _MarkerStyle("#cc79a7", "^"),
}
_OTHER = _MarkerStyle("#000000", "x")


def draw_fitness(generations: Generations, num_elites: int) -> bytes:
    """Return a PNG file: fitness of members, best, mean and elite mean of generations, over agent steps."""
    figure = Figure(figsize=(_INCHES, 4.2), dpi=_DPI, layout="constrained")
    axis = figure.add_subplot()
    tidy(axis)
    steps = np.array([members[0].step for members in generations], dtype=float)
    fitness = [
        np.sort([member.fitness for member in members if math.isfinite(member.fitness)])[::-1]
        for members in generations
    ]
    every = np.repeat(steps, [len(each) for each in fitness])
    axis.scatter(
        every,
        np.concatenate(fitness),
        s=9,
        color=_STYLES["elite"].colour,
        alpha=0.3,
        linewidth=0,
        label="member",
    )
    best = _over(fitness, lambda each: each[0])
    lines = {
        "best ever": (np.fmax.accumulate(best), _INK, "--"),
        "best": (best, _BLUE, "-"),
        f"elite mean (fittest {num_elites})": (
            _over(fitness, lambda each: each[:num_elites].mean()),
            _ORANGE,
            "-",
        ),
        "mean": (_over(fitness, np.mean), "#009e73", "-"),
    }
    marker = "o" if len(generations) < 3 else ""
    for label, (values, colour, style) in lines.items():
        drawn = "steps-post" if label == "best ever" else "default"
        axis.plot(
            steps, values, style, marker=marker, color=colour, label=label, linewidth=1.8, drawstyle=drawn
        )
    axis.set_xlabel("agent steps at the end of the generation, of all members together")
    axis.set_ylabel("fitness: mean episode return")
    axis.xaxis.set_major_formatter(with_commas())
    axis.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, min_n_ticks=1))
    axis.margins(x=0.01)
    figure.legend(loc="outside upper left", ncols=5, frameon=False)
    return png(figure)


def draw_lineage(generations: Generations) -> bytes:
    """Return a PNG file: members by generation, lines to their parents, the ancestry of the best ever."""
    num_generations, num_members = len(generations), len(generations[0])
    size = (
        min(_MOST_INCHES[0], max(_INCHES, 1.4 + 0.2 * num_generations)),
        min(_MOST_INCHES[1], 1.5 + 0.3 * max(4, num_members)),
    )
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    axis = figure.add_subplot()
    pitch = min((size[0] - 1.4) / num_generations, (size[1] - 1.5) / num_members) * _POINTS_PER_INCH
    dot = min(8.0, 0.45 * pitch)
    used = _draw_members(axis, generations, dot)
    handles = [_handle(name) for name in (*_STYLES, "other") if name in used]
    if best := best_place(generations):
        handles.append(_draw_ancestry(axis, generations, best, dot))
    axis.set_xlim(-0.7, num_generations - 0.3)
    axis.set_ylim(num_members - 0.4, -0.6)
    axis.set_xlabel("generation")
    axis.set_ylabel("member")
    axis.xaxis.set_major_locator(MaxNLocator(nbins=25, integer=True, min_n_ticks=1))
    axis.yaxis.set_major_locator(
        MaxNLocator(nbins=num_members, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
    )
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False)
    return png(figure)


def _over(fitness: Sequence[Values], statistic: Callable[[Values], float]) -> Values:
    """Return a statistic of each generation; NaN where no fitness is finite."""
    return np.array([statistic(each) if len(each) else math.nan for each in fitness])


def _draw_members(axis: Axes, generations: Generations, dot: float) -> set[str]:
    """Draw members and the lines to their parents; return the operators drawn."""
    lines: dict[str, list[tuple[Place, Place]]] = {}
    dots: dict[str, list[Place]] = {}
    for generation, members in enumerate(generations):
        for index, member in enumerate(members):
            *_, last = operators = [_known(name) for name in member.origin.operators]
            dots.setdefault(last, []).append((generation, index))
            for parent, operator in zip(member.origin.parents, (last, operators[0]), strict=False):
                lines.setdefault(operator, []).append(((generation - 1, parent), (generation, index)))
    for operator, pairs in lines.items():
        colour = _STYLES.get(operator, _OTHER).colour
        axis.add_collection(LineCollection(pairs, colors=colour, linewidths=0.9, alpha=0.55, zorder=1))
    for operator, places in dots.items():
        style = _STYLES.get(operator, _OTHER)
        axis.scatter(*zip(*places, strict=True), s=dot**2, c=style.colour, marker=style.marker, zorder=3)
    return {*lines, *dots}


def _draw_ancestry(axis: Axes, generations: Generations, best: Place, dot: float) -> Line2D:
    """Draw the line of the best member's ancestors and a star at it; return its entry in the legend."""
    pairs = ancestry(generations, best)
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


def _known(operator: str) -> str:
    return operator if operator in _STYLES else "other"


def _handle(name: str) -> Line2D:
    """Return an entry of the legend."""
    style = _STYLES.get(name, _OTHER)
    width = 0 if name == "initial" else 1.2
    return Line2D([], [], color=style.colour, marker=style.marker, linewidth=width, markersize=6, label=name)
