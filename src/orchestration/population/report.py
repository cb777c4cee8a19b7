"""The report of a population's run: one page that opens offline."""

import math
from collections.abc import Iterable
from html import escape
from pathlib import Path

from ...checkpoints.run_folder import LINEAGE_FILE
from ...utils.durable_io import writing
from ...utils.html_page import cards, document, image, table
from .ancestry import Generations, best_place, outcomes
from .figures import draw_fitness, draw_lineage
from .lineage import read_lineage

REPORT_FILE = "report.html"
_STYLE = ".outcomes td:first-child, .outcomes th:first-child { text-align: left; }"


def save_population_report(run_dir: Path, num_elites: int) -> Path:
    """Write `report.html` from `lineage.jsonl`, replacing an earlier one; return its path.

    Args:
        run_dir: The run folder.
        num_elites: The fittest of a generation that evolution keeps, `PopulationConfig.num_elites`.

    Raises:
        UserError: If `lineage.jsonl` is missing or has other content; nothing is written then.

    Cost: about a second, most of it for the pictures.
    """
    path = run_dir / REPORT_FILE
    text = render(read_lineage(run_dir / LINEAGE_FILE), num_elites, run_dir.name)
    unfinished = path.with_suffix(".tmp")
    with writing(unfinished):
        unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
    return path


def render(generations: Generations, num_elites: int, name: str) -> str:
    """Return the page of a run of that name."""
    last, num_members = generations[-1], len(generations[0])
    finite = [member.fitness for member in last if math.isfinite(member.fitness)]
    facts = {
        "generations": f"{len(generations):,}",
        "members": f"{num_members:,}",
        "agent steps": f"{last[0].step:,}",
        "mean fitness of the last generation": f"{sum(finite) / len(finite):,.4g}" if finite else "none",
    }
    body = [
        f"<h1>Population</h1><p class='soft'>{escape(name)}</p>",
        cards({"best fitness ever": _best(generations)} | facts),
        "<h2>Fitness</h2>",
        image(draw_fitness(generations, num_elites), "fitness over agent steps"),
        *_not_finite(generations),
        "<h2>Lineage</h2>",
        "<div class='scroll'>",
        image(draw_lineage(generations), "members by generation, with lines to their parents", "width: auto"),
        "</div><p class='soft'>Colour and shape tell which operator made a member, the last one where there "
        "were two. A child that was crossed and mutated is joined to its first parent in the colour of "
        "mutation and to its second parent in that of crossover. The ancestry follows first parents; second "
        "parents on it are marked too.</p>",
        "<h2>Outcome by operator</h2>",
        *_outcomes(generations, num_elites),
    ]
    return document(f"Population: {name}", body, _STYLE)


def _best(generations: Generations) -> str:
    """Return the fitness of the best member ever, and its place."""
    if (best := best_place(generations)) is None:
        return "none"
    generation, index = best
    return f"{generations[generation][index].fitness:,.4g} (generation {generation:,}, member {index:,})"


def _not_finite(generations: Generations) -> Iterable[str]:
    """Yield a sentence about members with a fitness that is not finite."""
    count = sum(not math.isfinite(member.fitness) for members in generations for member in members)
    if count:
        yield f"<p>{count:,} not drawn and in no mean: their fitness is NaN or infinite.</p>"


def _outcomes(generations: Generations, num_elites: int) -> Iterable[str]:
    """Yield the table of outcomes by operator."""
    found = outcomes(generations, num_elites)
    if not found:
        yield "<p>Available from generation 3.</p>"
        return
    rows = (
        [
            escape(operators),
            f"{outcome.born:,}",
            *(
                f"{count:,} ({count / outcome.born:.0%})"
                for count in (outcome.elites, outcome.parents, outcome.discarded)
            ),
        ]
        for operators, outcome in sorted(found.items(), key=lambda item: -item[1].born)
    )
    yield table(
        ["came about by", "members", "became elite", "parent, not elite", "discarded"], rows, "outcomes"
    )
    yield (
        f"<p class='soft'>Became elite: among the fittest {num_elites:,} of its generation. Injection is a "
        "copy of the gradient learner in the place of the worst. The first generation and the last are not "
        "counted: no operator made the one, and nobody was chosen from the other yet.</p>"
    )
