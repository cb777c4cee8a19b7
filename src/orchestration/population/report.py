"""The self-contained HTML report of a population run, with its fitness and lineage."""

import math
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...checkpoints.run_folder import LINEAGE_FILE
from ...utils.durable_io import replace_file
from ...utils.html_page import cards, document, image, png, table, tidy
from .lineage import Generations, Place, ancestry, best_place, outcomes, read_lineage

REPORT_FILE = "report.html"
_ANCESTRY = ("generations", "member", "created by", "parents", "best fitness")
_OUTCOMES = ("created by", "members", "became elite", "parent, not elite", "discarded")
_NOTES = """<p class='soft'>Became elite: among the fittest {:,} of its generation. Injection replaces the
worst member with a copy of the gradient learner. The first generation was not created by operators, and the
last one has not been through selection. Both are excluded, so outcomes start with generation 3.</p>"""


def save_population_report(run_dir: Path, num_elites: int) -> Path:
    """Write `report.html` from `lineage.jsonl` in about 1 s, and return its path.

    Raises:
        UserError: If `lineage.jsonl` is missing or invalid. An earlier report is then left unchanged.
    """
    path = run_dir / REPORT_FILE
    text = _page(read_lineage(run_dir / LINEAGE_FILE), num_elites, run_dir.name)
    replace_file(path, [text.encode()])
    return path


def _page(generations: Generations, num_elites: int, name: str) -> str:
    """Return the HTML page for the run `name`."""
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
        f"<p>{undrawn:,} not drawn or averaged: their fitness is NaN or infinite.</p>" if undrawn else "",
        "<h2>Ancestry of the best member, by first parents</h2>",
        table(_ANCESTRY, _ancestors(generations, best) if best else ()),
        "<h2>Outcome by operator</h2>",
        table(_OUTCOMES, _outcomes(generations, num_elites)),
        _NOTES.format(num_elites),
    ]
    style = "td:first-child, th:first-child { text-align: left; }"
    return document(f"Population: {name}", body, style)


def _ancestors(generations: Generations, best: Place) -> Iterator[list[str]]:
    """Yield rows for the best member and its ancestors. Ancestors with equal index and origin share a row."""
    line = [(place, generations[place[0]][place[1]]) for place in ancestry(generations, best)]
    for (index, origin), members in groupby(line, lambda each: (each[0][1], each[1].origin)):
        places, alike = zip(*members, strict=True)
        numbers = [f"{number:,}" for number, _ in sorted({places[0], places[-1]})]
        parents = ", ".join(f"{parent:,}" for parent in origin.parents)
        fitness = max(member.fitness for member in alike)
        operators = escape(" + ".join(origin.operators))
        yield [" to ".join(numbers), f"{index:,}", operators, parents, f"{fitness:,.4g}"]


def _outcomes(generations: Generations, num_elites: int) -> Iterator[list[str]]:
    """Yield a row per combination of operators with its numbers of elites, parents and discarded members."""
    found = outcomes(generations, num_elites)
    for operators, counts in sorted(found.items(), key=lambda item: -item[1].total()):
        total = counts.total()
        shares = (
            f"{counts[each]:,} ({counts[each] / total:.0%})" for each in ("elite", "parent", "discarded")
        )
        yield [escape(operators), f"{total:,}", *shares]


def _draw_fitness(generations: Generations, num_elites: int) -> bytes:
    """Return a PNG plot of every member's fitness and of each generation's best, mean and elite mean."""
    figure = Figure((10.6, 4.2), dpi=110, layout="constrained")
    axis = figure.add_subplot()
    tidy(axis)
    steps = np.array([members[0].step for members in generations], float)
    fitness = np.ma.masked_invalid([[member.fitness for member in members] for members in generations])
    best, fittest = fitness.max(axis=1), -np.ma.sort(-fitness, axis=1)
    every = np.broadcast_to(steps[:, None], fitness.shape)
    axis.scatter(every, fitness, s=9, color="#667085", alpha=0.3, linewidth=0, label="member")
    # Okabe & Ito's colors are distinguishable for color-blind readers.
    for label, values, color, style in (
        ("best ever", np.maximum.accumulate(best.filled(-np.inf)), "#1f2430", "--"),
        ("best", best, "#0072b2", "-"),
        (f"elite mean (fittest {num_elites})", fittest[:, :num_elites].mean(axis=1), "#d55e00", "-"),
        ("mean", fitness.mean(axis=1), "#009e73", "-"),
    ):
        axis.plot(steps, values, style, marker=".", markersize=3, color=color, label=label, linewidth=1.8)
    axis.margins(x=0.01)
    axis.set_xlabel("agent steps of all members at the end of the generation")
    axis.set_ylabel("fitness: mean episode return")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, min_n_ticks=1))
    figure.legend(loc="outside upper left", ncols=5, frameon=False)
    return png(figure)
