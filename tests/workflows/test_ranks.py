"""Processes that divide a batch learn the same as one process with the whole batch, to float64 rounding.

In float32, sums in another order differ by 1e-7 of their terms, and by 3e-5 of themselves if the terms
cancel. LaProp divides small gradients by themselves and amplifies that to 4e-4 of a momentum. That could hide
a wrong mean. The numbers are therefore float64, and each tensor of gradients, weights and moments may differ
by `LARGEST` of its own norm, because its entries may be zero except for rounding.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from reverie.utils.ranks import Ranks
from reverie.workflows.world_models.config import ControllerConfig
from reverie.workflows.world_models.world_model import detached_windows

from ..runs.ranks import FoundBySize, found_by_ranks
from .divided import ENVS, LEARNED, PHASES, UPDATES, Found
from .test_compiled import needs_compiler

LARGEST = 1e-10
SIZES = (2, 4)
# This is a mean over ranks of their local values. It is not used for learning.
OF_A_RANK = "advantage_std"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> FoundBySize:
    return found_by_ranks(tmp_path_factory, "tests.workflows.divided", "float64", 1, *SIZES)


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest) -> int:
    return request.param


def deviation(ours: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference over the expected norm, or over 1 for a number that may be zero."""
    difference = float((ours.double() - expected.double()).norm())
    return difference / (float(expected.double().norm()) or 1.0)


@pytest.mark.parametrize("case", LEARNED)
def test_metrics_gradients_weights_and_moments_equal_those_of_one_process(
    found: FoundBySize, size: int, case: str
) -> None:
    check_learned(found[1][0][case], [rank[case] for rank in found[size]])


@pytest.mark.gpu
def test_two_ranks_that_share_a_gpu_learn_what_one_process_learns(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = found_by_ranks(tmp_path_factory, "tests.workflows.divided_on_card", "float64", 1, 2)
    for case, expected in found[1][0].items():
        check_learned(expected, [rank[case] for rank in found[2]])


def check_learned(expected: Found, ranks: list[Found]) -> None:
    assert all(bool(expected[f"finite/{update}"]) for update in range(UPDATES))
    for rank in ranks:
        assert rank.keys() == expected.keys() and bool(rank["is_equal"])
        for name, value in expected.items():
            if OF_A_RANK in name:
                continue
            if name.startswith("metric/"):
                assert abs(float(rank[name] - value)) < LARGEST * max(1.0, abs(float(value))), name
            else:
                assert deviation(rank[name], value) < LARGEST, name


def test_actions_and_states_are_those_of_one_process_in_all_environments(
    found: FoundBySize, size: int
) -> None:
    name = "actions and states"
    ours = torch.cat([rank["acting"][name] for rank in found[size]])
    assert len(ours) == ENVS and deviation(ours, found[1][0]["acting"][name]) < LARGEST


def test_the_percentiles_are_those_of_the_returns_of_all_ranks(found: FoundBySize, size: int) -> None:
    returns = found[1][0]["returns"]["returns"]
    config = ControllerConfig()
    levels = np.quantile(returns.numpy(), [config.return_low, config.return_high])
    for rank in found[size]:
        assert deviation(rank["returns"]["returns"], returns) < LARGEST
        assert rank["returns"]["averages"].tolist() == pytest.approx(config.return_rate * levels, rel=1e-7)


@pytest.mark.parametrize("phase", PHASES)
def test_one_reward_that_is_no_number_holds_back_all_ranks(found: FoundBySize, size: int, phase: str) -> None:
    for rank in found[size]:
        case = rank[f"bad {phase}"]
        assert not bool(case["finite"]) and bool(case["only the noise moved"])


def test_one_entry_of_one_moment_makes_ranks_unequal(found: FoundBySize, size: int) -> None:
    for rank in found[size]:
        assert bool(rank["one moment"]["before"]) and not bool(rank["one moment"]["after"])


@pytest.mark.parametrize("count, size", [(1, 1), (3, 1), (16, 1), (8, 2), (4, 4), (12, 2), (5, 3), (2, 8)])
def test_a_detached_decoder_learns_from_every_eighth_window_however_they_are_divided(
    count: int, size: int
) -> None:
    loss = torch.arange(1.0, count * size + 1).square()
    means: list[float] = []
    for ranks in (Ranks(index, size) for index in range(size)):
        few, weight = detached_windows(count, ranks)
        means.append(weight * float(loss[ranks.slice_of(count * size)][few].mean()))
        assert len(range(count)[few]) <= (count + 7) // 8
    assert sum(means) / size == pytest.approx(float(loss[::8].mean()), rel=1e-6)


@needs_compiler
def test_compiled_ranks_learn_what_one_process_learns_as_written(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    found = found_by_ranks(tmp_path_factory, "tests.workflows.divided_compiled", "float64", 1, 2)
    check_learned(found[1][0], found[2])
