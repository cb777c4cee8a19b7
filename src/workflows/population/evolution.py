"""One generation of evolution: select, cross and mutate members."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .config import PopulationConfig
from .operators import clamp_weights, crossover, mutate


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a member."""

    parents: tuple[int, ...]
    """Indices in the previous generation; the first parent contributes the most."""

    operators: tuple[str, ...]
    """("initial",), ("elite",), ("learner",), ("injection",), ("clone",), or one or both of "crossover" and
    "mutation", in this order."""


INITIAL = Origin((), ("initial",))
"""Origin of each member of generation 0."""


@dataclass(slots=True)
class NextGeneration:
    """The next generation."""

    parameters: dict[str, Tensor]
    """Stacked parameters, each (M, ...), in new tensors."""

    origins: list[Origin]
    """Origin of each member."""

    first_parent: Tensor
    """int64 (M,), on the CPU: the member that each one inherits critics and optimiser's moments from."""


@torch.no_grad()
def evolve(
    parameters: Mapping[str, Tensor],
    fitness: Sequence[float],
    config: PopulationConfig,
    generator: torch.Generator,
) -> NextGeneration:
    """Select, cross and mutate.

    The `num_elites` fittest keep their index and their values to the bit, and so does the gradient learner,
    member 0, where there is one; the worst of the others becomes a copy of it. Every other member is a child:
    its parent wins a tournament; with `crossover_rate` it takes rows of a second parent, another member that
    wins a second tournament; with `mutation_rate` it is mutated; none of its weights is beyond
    `weight_limit`. Of two members that are equally fit the one of the lower index counts as the fitter.

    A fitness of NaN counts as -inf. Such a member becomes no parent and is not injected, unless all are such.

    Args:
        parameters: Stacked parameters, each float32 (M, rows, ...) with M = `config.size`; not changed.
        fitness: Fitness of each member.
        config: The rates.
        generator: On the CPU; the only source of randomness, the same on every device.

    Raises:
        ValueError: If parameters or fitness do not have `config.size` members.

    Reference:
        Khadka & Tumer 2018, arXiv:1805.07917, Algorithm 1. There the learner is outside of the population and
        children without a selected parent cross with an elite; here it is member 0, and parents are those of
        a tournament alone.

    Cost: one copy of the parameters, and two random numbers for each weight of a mutated child.
    """
    if {len(fitness), *map(len, parameters.values())} != {config.size}:
        raise ValueError(f"The parameters and the fitness must be those of {config.size} members.")
    ranking = rank(fitness)
    able = [member for member in ranking if not math.isnan(fitness[member])] or ranking
    origins = _kept(ranking, able, config)
    for member in range(config.size):
        if member not in origins:
            origins[member] = _sample_parents(able, config, generator)
    ordered = [origins[member] for member in range(config.size)]
    first_parent = torch.tensor([origin.parents[0] for origin in ordered])
    children = {name: stacked[first_parent.to(stacked.device)] for name, stacked in parameters.items()}
    for member, origin in enumerate(ordered):
        if origin.operators[0] not in ("elite", "learner", "injection"):
            _make_child(member, origin, children, parameters, config, generator)
    return NextGeneration(children, ordered, first_parent)


def rank(fitness: Sequence[float]) -> list[int]:
    """Return the members, the fittest first; NaN counts as -inf, of equals the lower index is first."""
    return sorted(
        range(len(fitness)),
        key=lambda member: math.inf if math.isnan(fitness[member]) else -fitness[member],
    )


def _kept(ranking: list[int], able: list[int], config: PopulationConfig) -> dict[int, Origin]:
    """Return the origins of members that are not children: elites, the learner, and its injected copy."""
    origins = {member: Origin((member,), ("elite",)) for member in ranking[: config.num_elites]}
    if config.has_learner:
        origins[0] = Origin((0,), ("learner",))
        others = [member for member in ranking if member not in origins]
        if others and 0 in able:
            origins[others[-1]] = Origin((0,), ("injection",))
    return origins


def _sample_parents(able: list[int], config: PopulationConfig, generator: torch.Generator) -> Origin:
    """Draw the parents and the operators of a child."""
    crosses, mutates = torch.rand(2, generator=generator) < torch.tensor(
        [config.crossover_rate, config.mutation_rate]
    )
    first = _tournament(able, config.tournament_size, generator)
    others = [member for member in able if member != first]
    if not (crosses and others):
        return Origin((first,), ("mutation",) if mutates else ("clone",))
    second = _tournament(others, config.tournament_size, generator)
    return Origin((first, second), ("crossover", "mutation") if mutates else ("crossover",))


def _tournament(ranking: list[int], size: int, generator: torch.Generator) -> int:
    """Return the fittest of `size` members drawn with replacement; `ranking` begins with the fittest."""
    return ranking[int(torch.randint(len(ranking), (size,), generator=generator).min())]


def _make_child(
    member: int,
    origin: Origin,
    children: dict[str, Tensor],
    parameters: Mapping[str, Tensor],
    config: PopulationConfig,
    generator: torch.Generator,
) -> None:
    """Apply the operators of `origin` to the copy of the first parent in row `member` of `children`."""
    child = {name: stacked[member] for name, stacked in children.items()}
    if "crossover" in origin.operators:
        other = {name: stacked[origin.parents[1]] for name, stacked in parameters.items()}
        child = crossover(child, other, config.crossover_fraction, generator)
    if "mutation" in origin.operators:
        child = mutate(child, config, generator)
    for name, tensor in child.items():
        children[name][member] = clamp_weights(tensor, config.weight_limit)
