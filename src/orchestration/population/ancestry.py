"""Evaluate a lineage: the best member ever, its ancestors, and which operators led to elites."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...workflows.population import rank
from .lineage import LineageMember

Generations = Sequence[Sequence[LineageMember]]
Place = tuple[int, int]
"""Generation and index of a member."""


@dataclass(slots=True)
class Outcome:
    """Counts of the members with one kind of origin, by what became of them."""

    elites: int = 0
    """Members among the fittest of their generation."""

    parents: int = 0
    """Other members that are parents in the next generation."""

    discarded: int = 0
    """The others."""

    @property
    def born(self) -> int:
        """Number of all members."""
        return self.elites + self.parents + self.discarded


def best_place(generations: Generations) -> Place | None:
    """Return the fittest member ever, the earliest of equals; None if no fitness is a finite number."""
    places = [
        (generation, index)
        for generation, members in enumerate(generations)
        for index, member in enumerate(members)
        if math.isfinite(member.fitness)
    ]
    return max(places, key=lambda place: generations[place[0]][place[1]].fitness, default=None)


def ancestry(generations: Generations, place: Place) -> list[tuple[Place, Place]]:
    """Return the pairs of parent and child on the line of first parents to a member, the latest first.

    A second parent of a member on that line is in it too; its own ancestors are not.
    """
    pairs: list[tuple[Place, Place]] = []
    while parents := generations[place[0]][place[1]].origin.parents:
        pairs += [((place[0] - 1, parent), place) for parent in parents]
        place = (place[0] - 1, parents[0])
    return pairs


def outcomes(generations: Generations, num_elites: int) -> dict[str, Outcome]:
    """Return the counts for each kind of origin, by its operators joined with " + ".

    Generation 0 is not counted, since no operator made it, nor is the last, before its selection.
    """
    found: dict[str, Outcome] = {}
    for members, following in pairwise(generations[1:]):
        elites = rank([member.fitness for member in members])[:num_elites]
        parents = {parent for child in following for parent in child.origin.parents}
        for index, member in enumerate(members):
            outcome = found.setdefault(" + ".join(member.origin.operators), Outcome())
            if index in elites:
                outcome.elites += 1
            elif index in parents:
                outcome.parents += 1
            else:
                outcome.discarded += 1
    return found
