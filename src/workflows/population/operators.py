"""Crossover and mutation of one child's parameters, as in ERL, and the diversity of members.

Random numbers come from a generator on the CPU, tensor by tensor in the order of the names: they depend
neither on the device nor on the order of the dictionary.

Reference:
    Khadka & Tumer 2018, arXiv:1805.07917, Algorithm 3 (mutation) and the authors' code of it. The rates of
    mutation are the paper's: 0.9 of the children, 0.1 of the weights, strength 0.1, 0.05 of the changes 100
    times as strong and 0.05 anew. What differs from the code: crossover makes one child, not two; the rows
    that it takes are distinct, and each brings its bias with it, where the code crosses biases apart; every
    tensor of a mutated child is mutated, biases too, where the code spares biases and draws for each tensor
    whether it is mutated; each weight is drawn once, where the code may change one several times; weights are
    limited to 100 by default.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from .config import PopulationConfig

_SUPER_FACTOR = 100.0


@torch.no_grad()
def crossover(
    child: Mapping[str, Tensor], other: Mapping[str, Tensor], fraction: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return the child with some rows of another member in place of its own.

    Of each tensor a number of rows, drawn uniformly from 0 to `fraction` of them (rounded down), is taken:
    distinct rows, drawn uniformly. A `bias` goes with the rows of its `weight`, so that a unit
    keeps its weights and its bias together.

    Args:
        child: Parameters of one member, each float32 (rows, ...); not changed.
        other: Those of another member, of the same names and shapes; not changed.
        fraction: Largest share of the rows, in [0, 1].
        generator: On the CPU.
    """
    crossed: dict[str, Tensor] = {}
    rows: dict[str, Tensor] = {}
    for name in sorted(child, key=lambda name: (_unit(name), name)):
        if _unit(name) not in rows:
            rows[_unit(name)] = _draw_rows(child[name], fraction, generator)
        taken = rows[_unit(name)]
        crossed[name] = child[name].clone()
        crossed[name][taken] = other[name][taken]
    return crossed


@torch.no_grad()
def mutate(
    child: Mapping[str, Tensor], config: PopulationConfig, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return the child with some of its weights changed, none beyond `config.weight_limit`.

    Each weight w changes with probability `mutation_fraction`. Of the changes, `reset_rate` are a new weight
    out of N(0, 1), `super_mutation_rate` add N(0, 100 * mutation_strength * |w|), the others add
    N(0, mutation_strength * |w|); the second argument is the standard deviation.

    Args:
        child: Parameters of one member, float32; not changed.
        config: The rates.
        generator: On the CPU.

    Cost: two random numbers a weight.
    """
    mutated: dict[str, Tensor] = {}
    super_below = config.mutation_fraction * config.super_mutation_rate
    reset_below = super_below + config.mutation_fraction * config.reset_rate
    for name in sorted(child):
        weight = child[name]
        which = torch.rand(weight.shape, generator=generator).to(weight.device)
        normal = torch.randn(weight.shape, generator=generator).to(weight.device)
        strength = torch.where(which < super_below, _SUPER_FACTOR, 1.0) * config.mutation_strength
        changed = torch.where(
            (which >= super_below) & (which < reset_below), normal, weight + strength * weight.abs() * normal
        )
        mutated[name] = clamp_weights(
            torch.where(which < config.mutation_fraction, changed, weight), config.weight_limit
        )
    return mutated


def clamp_weights(tensor: Tensor, limit: float) -> Tensor:
    """Return the tensor with its elements clamped to [-limit, limit]."""
    return tensor.clamp(-limit, limit)


@torch.no_grad()
def diversity(parameters: Mapping[str, Tensor]) -> float:
    """Return how much members differ, relative to the size of their parameters.

        sqrt(mean_i |p_i - mean(p)|^2 / mean_i |p_i|^2)

    with p_i all parameters of member i as one vector. It is the same for parameters of any scale. It is 0
    when all members are equal, sqrt(1 - 1/M) when M members are orthogonal and of equal length, and 1, the
    most, when their mean is zero.

    Args:
        parameters: Stacked parameters, each (M, ...).

    Cost: O(M P) in float64, one tensor at a time, and one wait for the device.
    """
    spread, size = torch.zeros(2, dtype=torch.float64, device=next(iter(parameters.values())).device)
    for stacked in parameters.values():
        members = stacked.double().flatten(1)
        apart = members - members[:1]  # relative to one member, so that equal members give exactly 0
        spread += (apart - apart.mean(0)).square().sum()
        size += members.square().sum()
    return float((spread / size.clamp_min(torch.finfo(torch.float64).tiny)).sqrt())


def _draw_rows(tensor: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Return the indices of the rows that change hands."""
    count = int(torch.randint(int(fraction * len(tensor)) + 1, (), generator=generator))
    return torch.randperm(len(tensor), generator=generator)[:count].to(tensor.device)


def _unit(name: str) -> str:
    """Return one name for a weight and its bias."""
    return f"{name.removesuffix('bias')}weight" if name.endswith("bias") else name
