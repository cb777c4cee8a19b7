"""Properties of selection, crossover and mutation for any population."""

import copy
import math
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from reverie.workflows.population.config import PopulationConfig
from reverie.workflows.population.evolution import crossover, diversity, evolve, mutate, rank

Parameters = dict[str, Tensor]


def population(size: int, hidden: int = 20, seed: int = 0) -> Parameters:
    torch.manual_seed(seed)
    networks = [nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 2)) for _ in range(size)]
    return torch.func.stack_module_state(networks)[0]  # type: ignore[arg-type]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def member(parameters: Mapping[str, Tensor], index: int) -> Parameters:
    return {name: stacked[index] for name, stacked in parameters.items()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def storages(parameters: Mapping[str, Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in parameters.values()}


fitnesses = st.floats(allow_nan=True, allow_infinity=True, width=32)
rates = st.sampled_from([0.0, 0.15, 0.5, 1.0])


@st.composite
def generations(draw: st.DrawFn) -> tuple[list[float], PopulationConfig, int]:
    fitness = draw(st.lists(fitnesses, min_size=2, max_size=12))
    config = PopulationConfig(
        size=len(fitness),
        gradient=draw(st.booleans()),
        elite_fraction=draw(st.floats(0, 0.7)),
        tournament_size=draw(st.integers(1, 5)),
        crossover_rate=draw(rates),
        crossover_fraction=draw(rates),
        mutation_rate=draw(rates),
        mutation_fraction=draw(rates),
        mutation_strength=draw(st.sampled_from([1e-3, 0.1, 1e30])),
        weight_limit=draw(st.sampled_from([0.1, 100.0])),
    )
    return fitness, config, draw(st.integers(0, 100))


@given(generations())
@settings(max_examples=150, deadline=None)
def test_the_laws_of_a_generation(drawn: tuple[list[float], PopulationConfig, int]) -> None:
    fitness, config, seed = drawn
    before = population(config.size, hidden=4)
    kept = copy.deepcopy(before)
    evolved = evolve(before, fitness, config, generator(seed))
    assert same(before, kept), "the input is left as it was"
    assert not storages(before) & storages(evolved.parameters)
    assert len(storages(evolved.parameters)) == len(before)
    assert [origin.parents[0] for origin in evolved.origins] == evolved.first_parent.tolist()
    assert evolved.first_parent.dtype == torch.int64

    order, able = rank(fitness), [i for i, value in enumerate(fitness) if not math.isnan(value)]
    elites = order[: config.num_elites]
    others = [i for i in order if i not in elites and not (config.gradient and i == 0)]
    for index, origin in enumerate(evolved.origins):
        made, expected = member(evolved.parameters, index), member(before, origin.parents[0])
        if config.gradient and index == 0:
            assert origin.operators == ("learner",) and origin.parents == (0,)
        elif index in elites:
            assert origin.operators == ("elite",) and origin.parents == (index,)
        elif config.gradient and index == others[-1] and (0 in able or not able):
            assert origin.operators == ("injection",) and origin.parents == (0,)
        else:
            assert origin.operators in {("clone",), ("mutation",), ("crossover",), ("crossover", "mutation")}
            assert len(origin.parents) == len(set(origin.parents)) == 1 + ("crossover" in origin.operators)
            assert all(tensor.isfinite().all() for tensor in made.values())
            assert all((tensor.abs() <= config.weight_limit).all() for tensor in made.values())
            assert not able or set(origin.parents) <= set(able), "NaN is no parent where others exist"
            expected = {
                name: each.clamp(-config.weight_limit, config.weight_limit) for name, each in expected.items()
            }
            if origin.operators != ("clone",):
                continue
        assert same(made, expected)


@given(generations())
@settings(max_examples=20, deadline=None)
def test_a_generation_is_the_same_for_a_seed_and_for_any_order_of_the_parameters(
    drawn: tuple[list[float], PopulationConfig, int],
) -> None:
    fitness, config, seed = drawn
    before = population(config.size, hidden=4)
    once = evolve(before, fitness, config, generator(seed))
    again = evolve(dict(reversed(before.items())), fitness, config, generator(seed))
    assert once.origins == again.origins and same(once.parameters, again.parameters)


@pytest.mark.gpu
def test_a_generation_on_a_gpu_is_that_of_the_cpu() -> None:
    config, fitness, before = PopulationConfig(size=8), list(map(float, range(8))), population(8)
    here = evolve(before, fitness, config, generator())
    there = evolve({name: each.cuda() for name, each in before.items()}, fitness, config, generator())
    assert here.origins == there.origins and torch.equal(here.first_parent, there.first_parent)
    for name, stacked in there.parameters.items():
        assert stacked.is_cuda
        torch.testing.assert_close(stacked.cpu(), here.parameters[name])


def test_another_seed_gives_other_children() -> None:
    config, fitness = PopulationConfig(size=8), list(map(float, range(8)))
    one, other = (evolve(population(8), fitness, config, generator(seed)) for seed in (1, 2))
    assert one.origins != other.origins and not same(one.parameters, other.parameters)


def test_members_are_ranked_by_fitness_with_nan_at_the_end_and_equals_in_their_order() -> None:
    assert rank([1.0, math.nan, 3.0, 1.0, -math.inf, math.inf]) == [5, 2, 0, 3, 1, 4]


def test_the_learner_takes_the_place_of_the_worst_that_is_no_elite() -> None:
    config = PopulationConfig(size=5, elite_fraction=0.4)
    origins = evolve(population(5), [-9.0, 2.0, -3.0, 4.0, -2.0], config, generator()).origins
    assert [origin.operators[0] for origin in origins[:4]] == ["learner", "elite", "injection", "elite"]
    assert origins[4].operators[0] not in ("learner", "elite", "injection")


def test_without_gradients_member_0_has_no_privilege_and_nobody_is_injected() -> None:
    config = PopulationConfig(size=5, gradient=False, mutation_rate=0.0, crossover_rate=0.0)
    origins = evolve(population(5), [-9.0, 2.0, -3.0, 4.0, -2.0], config, generator()).origins
    assert [origin.operators for origin in origins] == [("clone",)] * 3 + [("elite",), ("clone",)]


def test_a_learner_whose_fitness_is_not_a_number_stays_and_is_not_injected() -> None:
    config = PopulationConfig(size=6)
    origins = evolve(population(6), [math.nan, 1.0, 2.0, 3.0, 4.0, 5.0], config, generator()).origins
    assert origins[0].operators == ("learner",)
    assert all(0 not in origin.parents for origin in origins[1:])


@pytest.mark.parametrize(
    ("fitness", "operators"),
    [([1.0, 0.0], ["learner", "injection"]), ([0.0, 1.0], ["learner", "elite"])],
)
def test_of_two_members_one_is_the_learner_and_the_other_an_elite_or_its_copy(
    fitness: list[float], operators: list[str]
) -> None:
    before = population(2)
    evolved = evolve(before, fitness, PopulationConfig(size=2), generator())
    assert [origin.operators for origin in evolved.origins] == [(name,) for name in operators]
    assert same(member(evolved.parameters, 1), member(before, evolved.origins[1].parents[0]))


def test_a_tournament_of_very_many_is_won_by_the_fittest() -> None:
    config = PopulationConfig(size=10, gradient=False, tournament_size=1000, crossover_rate=1.0)
    fitness = [0.0, 5.0, 2.0, 9.0, 1.0, 3.0, 8.0, 4.0, 6.0, 7.0]
    evolved = evolve(population(10), fitness, config, generator())
    children = [origin for origin in evolved.origins if origin.operators != ("elite",)]
    assert len(children) == 8 and {origin.parents for origin in children} == {(3, 6)}


def test_parents_are_as_frequent_as_tournaments_of_three_make_them() -> None:
    config = PopulationConfig(size=2000, gradient=False, crossover_rate=0.0, mutation_rate=0.0)
    fitness = list(map(float, range(2000)))
    parents = evolve({"weight": torch.zeros(2000, 1, 1)}, fitness, config, generator()).first_parent[:1600]
    upper_half = (parents >= 1000).float().mean().item()
    assert abs(upper_half - 7 / 8) < 5 * math.sqrt(7 / 64 / 1600)


def test_children_are_crossed_and_mutated_at_the_configured_rates_independently() -> None:
    config = PopulationConfig(size=5000, gradient=False, crossover_rate=0.3, mutation_rate=0.8)
    evolved = evolve({"weight": torch.ones(5000, 1, 1)}, [0.0] * 5000, config, generator())
    operators = [origin.operators for origin in evolved.origins[1000:]]
    for names, rate in {
        ("clone",): 0.7 * 0.2,
        ("mutation",): 0.7 * 0.8,
        ("crossover",): 0.3 * 0.2,
        ("crossover", "mutation"): 0.3 * 0.8,
    }.items():
        share = operators.count(names) / 4000
        assert abs(share - rate) < 5 * math.sqrt(rate * (1 - rate) / 4000), names


def test_crossover_takes_whole_units_with_their_bias_and_no_more_of_them_than_the_fraction() -> None:
    child = {"layer.weight": torch.zeros(10, 4), "layer.bias": torch.zeros(10), "scale": torch.zeros(10)}
    other = {name: torch.ones_like(tensor) for name, tensor in child.items()}
    counts, rows, alone = torch.zeros(4), torch.zeros(10), torch.zeros(4)
    source = generator()
    for _ in range(2000):
        crossed = crossover(child, other, 0.3, source)
        taken = crossed["layer.bias"]
        assert torch.equal(crossed["layer.weight"], taken[:, None].expand(10, 4))
        counts[int(taken.sum())] += 1
        alone[int(crossed["scale"].sum())] += 1
        rows += taken
    assert not any(child[name].any() for name in child)
    bound = 5 * math.sqrt(0.25 * 0.75 / 2000)
    assert (counts / 2000 - 0.25).abs().max() < bound and (alone / 2000 - 0.25).abs().max() < bound
    assert (rows / 2000 - 0.15).abs().max() < 5 * math.sqrt(0.15 * 0.85 / 2000)


def test_crossover_shares_no_storage_with_its_parents() -> None:
    parents = population(2)
    one, other = member(parents, 0), member(parents, 1)
    assert not storages(parents) & storages(crossover(one, other, 0.0, generator()))


def test_mutation_changes_the_configured_shares_by_the_configured_amounts() -> None:
    config = PopulationConfig(weight_limit=1e6)
    count = 2_000_000
    changes = mutate({"weight": torch.full((count,), 1e-3)}, config, generator())["weight"] - 1e-3
    changed = changes[changes != 0]
    assert_share(len(changed) / count, 0.1, count)
    # A weight of 0.001 changes by 0.0001, 0.01 or 1. These deviations differ enough to be distinguished by
    # the share of changes beyond a bound between them.
    assert_share(
        (changed.abs() > 6e-4).float().mean().item(), 0.05 * normal_beyond(0.06) + 0.05, len(changed)
    )
    assert_share((changed.abs() > 0.06).float().mean().item(), 0.05 * normal_beyond(0.06), len(changed))
    ordinary = changed[changed.abs() < 6e-4]
    assert abs(ordinary.std().item() / 1e-4 - 1) < 0.02


@pytest.mark.parametrize(
    ("super_rate", "reset_rate", "mean", "deviation"),
    [(0.0, 0.0, -2.0, 0.2), (1.0, 0.0, -2.0, 20.0), (0.0, 1.0, 0.0, 1.0)],
)
def test_each_kind_of_mutation_has_its_own_distribution(
    super_rate: float, reset_rate: float, mean: float, deviation: float
) -> None:
    config = PopulationConfig(
        mutation_fraction=1.0, super_mutation_rate=super_rate, reset_rate=reset_rate, weight_limit=1e6
    )
    count = 400_000
    mutated = mutate({"weight": torch.full((count,), -2.0)}, config, generator())["weight"]
    assert abs(mutated.mean().item() - mean) < 5 * deviation / math.sqrt(count)
    assert abs(mutated.std().item() / deviation - 1) < 5 / math.sqrt(2 * count)


def test_a_mutated_weight_is_never_beyond_the_limit_nor_is_a_clone_of_one_that_is() -> None:
    config = PopulationConfig(
        size=10,
        gradient=False,
        weight_limit=0.5,
        mutation_rate=1.0,
        mutation_fraction=1.0,
        mutation_strength=1e30,
        reset_rate=0.0,
    )
    before = {"weight": torch.full((10, 30, 30), 3e30)}
    children = evolve(before, [0.0] * 10, config, generator()).parameters["weight"][2:]
    assert children.abs().max() == 0.5 and children.unique().tolist() == [-0.5, 0.5]
    still = PopulationConfig(size=10, gradient=False, weight_limit=0.5, mutation_rate=0.0, crossover_rate=0.0)
    evolved = evolve(before, [0.0] * 10, still, generator())
    assert evolved.parameters["weight"][2:].unique().tolist() == [0.5]
    assert same(member(evolved.parameters, 0), member(before, 0)), "an elite is left as it is"


def test_fitness_or_parameters_of_another_number_of_members_are_refused() -> None:
    with pytest.raises(ValueError, match="must have 4 members each"):
        evolve(population(4), [1.0, 2.0, 3.0], PopulationConfig(size=4), generator())
    with pytest.raises(ValueError, match="must have 4 members each"):
        evolve(population(3), [1.0] * 4, PopulationConfig(size=4), generator())


def test_diversity_is_0_for_equal_members_and_1_for_opposite_ones_at_any_scale() -> None:
    one = torch.randn(1, 7, 5)
    assert diversity({"weight": one.expand(3, 7, 5), "bias": torch.full((3, 7), 0.1)}) == 0
    assert diversity({"weight": torch.zeros(3, 7, 5)}) == 0
    for scale in (1e-12, 1.0, 1e12):
        assert diversity({"weight": scale * torch.cat([one, -one])}) == pytest.approx(1)
        assert diversity({"weight": scale * torch.eye(9)}) == pytest.approx(math.sqrt(8 / 9))


@given(st.integers(0, 1000), st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_diversity_agrees_with_its_definition_and_lies_between_0_and_1(seed: int, size: int) -> None:
    parameters = population(size, hidden=3, seed=seed)
    vectors = torch.cat([stacked.detach().double().flatten(1) for stacked in parameters.values()], 1)
    spread = (vectors - vectors.mean(0)).norm(dim=1).square().mean()
    expected = (spread / vectors.norm(dim=1).square().mean()).sqrt().item()
    assert diversity(parameters) == pytest.approx(expected, abs=1e-12)
    assert 0 <= expected <= 1


def normal_beyond(bound: float) -> float:
    """Return the probability that a standard normal number exceeds the bound in magnitude."""
    return math.erfc(bound / math.sqrt(2))


def assert_share(found: float, expected: float, count: int) -> None:
    assert abs(found - expected) < 5 * math.sqrt(expected * (1 - expected) / count), (found, expected)
