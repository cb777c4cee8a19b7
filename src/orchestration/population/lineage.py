"""Write, read and analyze `lineage.jsonl`, the ancestry of a population's members."""

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...utils.errors import UserError
from ...utils.logging.json_lines import malformed_line_error, read_lines
from ...workflows.population.evolution import Origin, rank


@dataclass(frozen=True, slots=True)
class LineageMember:
    """A line of the file: a member of a generation."""

    step: int
    """Agent steps at the end of the generation."""

    fitness: float
    """Mean return of the member in the generation, possibly NaN or infinite."""

    origin: Origin


Generations = Sequence[Sequence[LineageMember]]
Place = tuple[int, int]
"""Generation and index of a member."""


def lineage_lines(
    step: int, generation: int, fitness: Sequence[float], origins: Sequence[Origin]
) -> list[dict[str, object]]:
    """Return a line for each member of a generation (counted from 0) that ended at agent step `step`."""
    return [
        {
            "step": step,
            "generation": generation,
            "member": member,
            "fitness": float(each),
            "parents": list(origin.parents),
            "operators": list(origin.operators),
        }
        for member, (each, origin) in enumerate(zip(fitness, origins, strict=True))
    ]


def read_lineage(path: Path) -> list[list[LineageMember]]:
    """Return the members of each generation in order, excluding a last generation left unfinished by a crash.

    Raises:
        UserError: If the file is missing or empty, or lines are out of order.
    """
    generations: list[list[LineageMember]] = []
    for number, line in enumerate(read_lines(path) if os.path.lexists(path) else (), start=1):
        try:
            is_cut = number == 1 and line["generation"] > 0
            if not is_cut:
                _add_member(line, generations)
        except (ValueError, TypeError, KeyError) as error:
            raise malformed_line_error(path, number) from error
        if is_cut:
            raise UserError(
                f"{path} starts with generation {line['generation']}: earlier lines are missing. Restore the "
                "whole file."
            )
    if len(generations) > 1 and len(generations[-1]) < len(generations[0]):
        generations.pop()
    if not generations:
        raise UserError(f"{path} does not contain a complete generation. Train until the first one ends.")
    return generations


def _add_member(line: dict[str, Any], generations: list[list[LineageMember]]) -> None:
    """Add a line's member. Raise ValueError, TypeError or KeyError if the line is invalid or out of order."""
    generation, member = line["generation"], line["member"]
    size, last = (len(generations[0]), len(generations[-1])) if generations else (0, 0)
    if (generation, member) == (len(generations), 0) and last == size:
        generations.append([])
    elif (generation, member) != (len(generations) - 1, last) or (generation > 0 and last == size):
        raise ValueError("out of order")
    parents, operators = tuple(line["parents"]), tuple(line["operators"])
    num_before = len(generations[-2]) if len(generations) > 1 else 0
    if not (
        all(type(parent) is int and 0 <= parent < num_before for parent in parents)
        and bool(parents) == (generation > 0)
        and operators
        and all(isinstance(name, str) for name in operators)
    ):
        raise ValueError("invalid parents or operators")
    generations[-1].append(LineageMember(line["step"], float(line["fitness"]), Origin(parents, operators)))


def best_place(generations: Generations) -> Place | None:
    """Return the earliest member with the highest fitness, or `None` if no fitness is finite."""
    places = [
        (generation, index)
        for generation, members in enumerate(generations)
        for index, member in enumerate(members)
        if math.isfinite(member.fitness)
    ]
    return max(places, key=lambda place: generations[place[0]][place[1]].fitness, default=None)


def ancestry(generations: Generations, place: Place) -> list[Place]:
    """Return a member and its ancestors, following first parents, newest first."""
    places = [place]
    while parents := generations[place[0]][place[1]].origin.parents:
        place = (place[0] - 1, parents[0])
        places.append(place)
    return places


def outcomes(generations: Generations, num_elites: int) -> dict[str, Counter[str]]:
    """Return the number of members per outcome for each combination of operators, joined with " + ".

    An "elite" is among the fittest of its generation. A "parent" is another member with a child in the next
    generation. All others are "discarded". Generation 0, which was not created by operators, is excluded. So
    is the last generation, from which nothing has been selected yet.
    """
    found: dict[str, Counter[str]] = {}
    for members, following in pairwise(generations[1:]):
        elites = rank([member.fitness for member in members])[:num_elites]
        parents = {parent for child in following for parent in child.origin.parents}
        for index, member in enumerate(members):
            outcome = "elite" if index in elites else "parent" if index in parents else "discarded"
            found.setdefault(" + ".join(member.origin.operators), Counter())[outcome] += 1
    return found
