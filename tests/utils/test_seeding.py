"""One seed gives many streams: stable over versions, distinct and independent."""

import os
import random

import numpy as np
import pytest
import torch

from reverie.utils.seeding import (
    choose_deterministic_kernels,
    episode_seed,
    named_seed,
    numpy_generator,
    seed_global,
    torch_generator,
)


def test_seeds_are_the_same_in_every_version() -> None:
    assert named_seed(0, "replay") == 5687010329443203146
    assert named_seed(1, "replay") == 9033305092953037455
    assert episode_seed(0, 0, 0) == 1886581393
    assert episode_seed(7, 3, 11) == 971045361


def test_every_part_of_the_path_and_their_order_matter() -> None:
    words = [("a",), ("b",), ("a", "b"), ("b", "a")]
    paths = [*words, ("a", 0), ("a", 1), ("a", 0, 0), ("a", 0, 1), ("a", 1, 0)]
    seeds = [named_seed(run_seed, *path) for run_seed in (0, 1, 2) for path in paths]
    assert len(set(seeds)) == len(seeds)


def test_named_seeds_fill_63_bits() -> None:
    seeds = [named_seed(0, "stream", index) for index in range(200)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    for bit in range(63):
        assert 60 <= sum(seed >> bit & 1 for seed in seeds) <= 140


def test_episode_seeds_are_31_bits_and_distinct_over_environments_and_episodes() -> None:
    seeds = [episode_seed(0, env, episode) for env in range(8) for episode in range(500)]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert max(seeds) >= 2**30
    assert len(set(seeds)) == len(seeds)


def test_episode_seeds_of_neighbouring_runs_have_nothing_in_common() -> None:
    first, second = ({episode_seed(run, env, 0) for env in range(500)} for run in (0, 1))
    assert not first & second


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.corrcoef(first, second)[0, 1])


@pytest.mark.parametrize(
    ("first", "second"),
    [((0, "replay"), (0, "actor")), ((0, "replay"), (1, "replay"))],
    ids=["other name", "other run seed"],
)
def test_streams_are_uncorrelated(first: tuple[int, str], second: tuple[int, str]) -> None:
    # These are five standard deviations for 10,000 pairs.
    limit = 5 / 100
    assert abs(correlation(*(numpy_generator(*which).random(10_000) for which in (first, second)))) < limit
    draws = [torch.rand(10_000, generator=torch_generator(*which)).numpy() for which in (first, second)]
    assert abs(correlation(draws[0], draws[1])) < limit


def test_a_stream_repeats_itself_whatever_else_is_drawn() -> None:
    expected_numpy = numpy_generator(3, "replay").random(4).tolist()
    expected_torch = torch.rand(4, generator=torch_generator(3, "actor"))
    replay, actor = numpy_generator(3, "replay"), torch_generator(3, "actor")
    numpy_generator(3, "other").random(100)
    torch.rand(100)
    assert replay.random(4).tolist() == expected_numpy
    assert torch.equal(torch.rand(4, generator=actor), expected_torch)


def draws_of_global_generators() -> list[float]:
    return [random.random(), float(np.random.random()), float(torch.rand(()))]


def test_seeding_the_global_generators_repeats_all_three_and_makes_them_differ() -> None:
    seed_global(5)
    first = draws_of_global_generators()
    seed_global(5)
    assert draws_of_global_generators() == first
    seed_global(6)
    other = draws_of_global_generators()
    assert all(number != before for number, before in zip(other, first, strict=True))
    assert len(set(first)) == 3


def test_deterministic_kernels_hold_for_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    # monkeypatch restores the current value at the end.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    try:
        torch.use_deterministic_algorithms(False)
        choose_deterministic_kernels()
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
