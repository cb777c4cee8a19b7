"""One generation of evolution (selection, crossover and mutation), and the diversity of a population.

Khadka & Tumer 2018, arXiv:1805.07917, Algorithms 1 and 3 (deviations: docs/differences.md). Random numbers
are always drawn on the CPU, tensor by tensor, in the order of their names.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...utils.units import count_text
from .config import PopulationConfig

_SUPER_FACTOR = 100.0


@dataclass(frozen=True, slots=True)
class Origin:
    """A member's parents, and the operators that created it."""

    parents: tuple[int, ...]
    """Indices in the previous generation. The first parent contributes the most."""

    operators: tuple[str, ...]
    """One of "initial", "elite", "learner", "injection" and "clone", or "crossover", "mutation" or both."""


INITIAL = Origin((), ("initial",))


@dataclass(slots=True)
class NextGeneration:
    """The next generation: stacked parameters in new tensors, each (M, ...), and the members' origins."""

    parameters: dict[str, Tensor]
    origins: list[Origin]

    first_parent: Tensor
    """Index of the parent from which each member inherits critics and moments, int64 (M,) on the CPU."""


@torch.no_grad()
def evolve(
    parameters: Mapping[str, Tensor],
    fitness: Sequence[float],
    config: PopulationConfig,
    generator: torch.Generator,
) -> NextGeneration:
    """Return the next generation of members with stacked parameters, each float32 (M, rows, ...).

    The `num_elites` fittest members keep their index and exact values. So does the gradient learner (member
    0), if there is one. A copy of the learner replaces the worst other member, and all remaining members are
    replaced by children. A child's parent is the winner of a tournament. With probability `crossover_rate`,
    the child inherits rows from the winner of a second tournament. With probability `mutation_rate`, it is
    mutated. Its weights are clipped to `weight_limit`. A fitness of NaN counts as -inf. Members with NaN are
    neither parents nor injected, unless all have NaN. The CPU generator is the only source of randomness.

    Raises:
        ValueError: If `parameters` or `fitness` does not have `config.size` members.
    """
    if {len(fitness), *map(len, parameters.values())} != {config.size}:
        raise ValueError(f"Parameters and fitness must have {count_text(config.size, 'member')} each.")
    ranking = rank(fitness)
    able = [member for member in ranking if not math.isnan(fitness[member])] or ranking
    kept = _kept(ranking, able, config)
    origins = [kept.get(member) or _sample_parents(able, config, generator) for member in range(config.size)]
    first_parent = torch.tensor([origin.parents[0] for origin in origins])
    following = {name: stacked[first_parent.to(stacked.device)] for name, stacked in parameters.items()}
    for member, origin in enumerate(origins):
        if member in kept:
            continue
        child = {name: stacked[member] for name, stacked in following.items()}
        if "crossover" in origin.operators:
            other = {name: stacked[origin.parents[1]] for name, stacked in parameters.items()}
            child = crossover(child, other, config.crossover_fraction, generator)
        if "mutation" in origin.operators:
            child = mutate(child, config, generator)
        for name, tensor in child.items():
            following[name][member] = tensor.clamp(-config.weight_limit, config.weight_limit)
    return NextGeneration(following, origins, first_parent)


def rank(fitness: Sequence[float]) -> list[int]:
    """Return the member indices, fittest first. NaN counts as -inf, and ties are broken by index."""
    keys = [math.inf if math.isnan(each) else -each for each in fitness]
    return sorted(range(len(fitness)), key=keys.__getitem__)


def _kept(ranking: list[int], able: list[int], config: PopulationConfig) -> dict[int, Origin]:
    """Return the origins of all members that are not children: elites, the learner and its injected copy."""
    origins = {member: Origin((member,), ("elite",)) for member in ranking[: config.num_elites]}
    if config.has_learner:
        origins[0] = Origin((0,), ("learner",))
        others = [member for member in ranking if member not in origins]
        if others and 0 in able:
            origins[others[-1]] = Origin((0,), ("injection",))
    return origins


def _sample_parents(able: list[int], config: PopulationConfig, generator: torch.Generator) -> Origin:
    """Draw a child's parents and operators."""
    rates = torch.tensor([config.crossover_rate, config.mutation_rate])
    crosses, mutates = torch.rand(2, generator=generator) < rates
    first = _tournament(able, config.tournament_size, generator)
    others = [member for member in able if member != first]
    if not (crosses and others):
        return Origin((first,), ("mutation",) if mutates else ("clone",))
    second = _tournament(others, config.tournament_size, generator)
    return Origin((first, second), ("crossover", "mutation") if mutates else ("crossover",))


def _tournament(ranking: list[int], size: int, generator: torch.Generator) -> int:
    """Return the fittest of `size` members drawn with replacement from `ranking` (fittest first)."""
    return ranking[int(torch.randint(len(ranking), (size,), generator=generator).min())]


@torch.no_grad()
def crossover(
    child: Mapping[str, Tensor], other: Mapping[str, Tensor], fraction: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return a copy of the child, each tensor (rows, ...), with some rows taken from another member.

    For each tensor, the number of distinct rows is drawn uniformly from 0 to `fraction` of its rows, rounded
    down. `weight` and `bias` exchange the same rows, so a unit's weights and bias stay together.
    """
    crossed: dict[str, Tensor] = {}
    rows: dict[str, Tensor] = {}
    for name in sorted(child, key=lambda name: (_unit(name), name)):
        if _unit(name) not in rows:
            most = int(fraction * len(child[name]))
            count = int(torch.randint(most + 1, (), generator=generator))
            drawn = torch.randperm(len(child[name]), generator=generator)[:count]
            rows[_unit(name)] = drawn.to(child[name].device)
        taken = rows[_unit(name)]
        crossed[name] = child[name].clone()
        crossed[name][taken] = other[name][taken]
    return crossed


def _unit(name: str) -> str:
    """Return the same key for a weight and its bias."""
    return f"{name.removesuffix('bias')}weight" if name.endswith("bias") else name


@torch.no_grad()
def mutate(
    child: Mapping[str, Tensor], config: PopulationConfig, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return a mutated copy of the child.

    Each weight w changes with probability `mutation_fraction`. A fraction `reset_rate` of the changes draw w
    from N(0, 1), a fraction `super_mutation_rate` add N(0, 100 * mutation_strength * |w|), and all others add
    N(0, mutation_strength * |w|). The second argument of N is the standard deviation.
    """
    mutated: dict[str, Tensor] = {}
    super_below = config.mutation_fraction * config.super_mutation_rate
    reset_below = super_below + config.mutation_fraction * config.reset_rate
    for name in sorted(child):
        weight = child[name]
        which = torch.rand(weight.shape, generator=generator).to(weight.device)
        normal = torch.randn(weight.shape, generator=generator).to(weight.device)
        strength = torch.where(which < super_below, _SUPER_FACTOR, 1.0) * config.mutation_strength
        is_reset = (which >= super_below) & (which < reset_below)
        changed = torch.where(is_reset, normal, weight + strength * weight.abs() * normal)
        mutated[name] = torch.where(which < config.mutation_fraction, changed, weight)
    return mutated


@torch.no_grad()
def diversity(parameters: Mapping[str, Tensor]) -> float:
    """Return the spread of the members relative to the size of their parameters, each (M, ...).

        sqrt(mean_i |p_i - mean(p)|^2 / mean_i |p_i|^2)

    Here, p_i is the vector of all parameters of member i. The measure is scale-free. It is 0 for equal
    members, sqrt(1 - 1/M) for orthogonal members of equal length, and 1, its maximum, if the mean is zero.
    """
    spread, size = torch.zeros(2, dtype=torch.float64, device=next(iter(parameters.values())).device)
    for stacked in parameters.values():
        members = stacked.double().flatten(1)
        # Taking differences from one member makes the result exactly 0 for equal members.
        apart = members - members[:1]
        spread += (apart - apart.mean(0)).square().sum()
        size += members.square().sum()
    return float((spread / size.clamp_min(torch.finfo(torch.float64).tiny)).sqrt())
