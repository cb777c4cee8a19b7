"""Impossible requests are refused before any allocation, with numbers for a fix."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reverie.buffers import (
    EpisodeReplayBuffer,
    LatentSpec,
    ReplayConfig,
    ReplaySpec,
    ReplayStorage,
    check_storage,
    largest_capacity,
    plan_replay,
)
from reverie.utils.errors import UserError
from reverie.utils.timestep import ActionSpec, ArraySpec, EnvSpec

from .memory import in_use_bytes
from .reference import make_buffer

GIB = 2**30


def request(num_envs: int = 1, window_length: int = 65, **settings: Any) -> ReplaySpec:
    """Return a request for Pong."""
    return ReplaySpec(
        config=ReplayConfig(**settings),
        observation={"image": ArraySpec((64, 64, 3), np.dtype(np.uint8))},
        action=ActionSpec(6, True),
        num_envs=num_envs,
        window_length=window_length,
        latent=LatentSpec(deter_size=2048, num_latents=32),
    )


def build(asked: ReplaySpec, directory: Path | None = None) -> EpisodeReplayBuffer:
    """Build the requested buffer."""
    return EpisodeReplayBuffer(asked, generator=np.random.default_rng(0), directory=directory)


def test_a_request_over_the_budget_names_the_capacity_that_fits() -> None:
    with pytest.raises(UserError) as error:
        plan_replay(request(capacity=1_000_000, store_latents=False, memory_budget_gib=8.0))
    assert str(error.value) == (
        "1,000,000 steps of (64, 64, 3) uint8 need 11.5 GiB, over buffer.memory_budget_gib=8. "
        "Lower buffer.capacity to 697,104 or raise the budget."
    )


@pytest.mark.parametrize("num_envs", [1, 8])
@pytest.mark.parametrize("other", [{}, {"cross_episodes": False}, {"compressed": True}])
def test_the_proposed_capacity_fits_and_one_step_more_does_not(other: dict[str, bool], num_envs: int) -> None:
    asked = request(num_envs, 9, capacity=10**7, chunk_length=10, memory_budget_gib=0.01, **other)
    with pytest.raises(UserError) as error:
        plan_replay(asked)
    found = re.search(r"buffer.capacity to ([\d,]+)", str(error.value))
    assert found
    capacity = int(found[1].replace(",", ""))
    assert capacity == largest_capacity(asked, int(0.01 * GIB))
    buffer = build(replace(asked, config=replace(asked.config, capacity=capacity)))
    assert buffer.nbytes() <= 0.01 * GIB
    with pytest.raises(UserError):
        plan_replay(replace(asked, config=replace(asked.config, capacity=capacity + 1)))


def test_a_request_over_the_budget_allocates_nothing(tmp_path: Path) -> None:
    for storage in (ReplayStorage.ram, ReplayStorage.mmap):
        asked = request(capacity=10**12, storage=storage)
        before = in_use_bytes()
        with pytest.raises(UserError, match=r"1,000,000,000,000 steps of \(64, 64, 3\) uint8 need"):
            build(asked, tmp_path / "replay")
        assert in_use_bytes() - before < 1_000_000
    assert list(tmp_path.iterdir()) == []


def test_a_budget_below_any_useful_capacity_names_the_budget_that_suffices() -> None:
    asked = request(capacity=2000, memory_budget_gib=0.001)
    with pytest.raises(UserError, match="Raise the budget to") as error:
        plan_replay(asked)
    found = re.search(r"to ([\d.]+)\.$", str(error.value))
    assert found
    enough = float(found[1])
    assert plan_replay(replace(asked, config=replace(asked.config, memory_budget_gib=enough))).nbytes > 0


def test_a_window_longer_than_the_capacity_names_both_keys() -> None:
    with pytest.raises(UserError) as error:
        plan_replay(request(4, 65, capacity=100))
    assert str(error.value) == (
        "training.sequence_length=64 with env.num_envs=4 needs a window of 65 steps per environment, "
        "260 in total, but buffer.capacity=100. Raise buffer.capacity to 260 or lower "
        "training.sequence_length to 24."
    )
    plan_replay(request(4, 65, capacity=260))
    plan_replay(request(4, 25, capacity=100))


def test_a_full_disk_is_refused_before_a_file_exists(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    asked = request(capacity=2 * free // 12288, storage=ReplayStorage.mmap, memory_budget_gib=1e9)
    with pytest.raises(UserError, match="GiB are free") as error:
        build(asked, tmp_path / "run" / "replay")
    assert list(tmp_path.iterdir()) == []
    found = re.search(r"Lower buffer.capacity to ([\d,]+)", str(error.value))
    assert found
    smaller = replace(asked, config=replace(asked.config, capacity=int(found[1].replace(",", "")) // 2))
    check_storage(smaller, plan_replay(smaller), torch.device("cpu"), tmp_path)
    codes = replace(asked, config=replace(asked.config, compressed=True, memory_budget_gib=2 * free / GIB))
    with pytest.raises(UserError, match=r"Lower buffer\.memory_budget_gib to ([\d.]+) or") as error:
        build(codes, tmp_path / "run" / "replay")
    # Other processes use the disk, too.
    budget = float(re.findall(r"to ([\d.]+) or", str(error.value))[0]) * 0.9
    smaller = replace(codes, config=replace(codes.config, memory_budget_gib=budget))
    check_storage(smaller, plan_replay(smaller), torch.device("cpu"), tmp_path)


def test_cuda_storage_on_another_device_is_refused() -> None:
    asked = request(capacity=1000, storage=ReplayStorage.cuda)
    with pytest.raises(UserError, match=r"buffer\.storage=cuda needs device=cuda, got device=cpu"):
        build(asked)


def test_an_observation_that_torch_cannot_copy_is_refused_by_name() -> None:
    for dtype in (np.uint16, np.dtype("U3")):
        asked = replace(request(), observation={"depth": ArraySpec((4,), np.dtype(dtype))})
        with pytest.raises(UserError, match="Observation `depth` of the environment has dtype"):
            plan_replay(asked)


@pytest.mark.parametrize(
    ("key", "value"),
    [("capacity", 0), ("memory_budget_gib", 0.0), ("memory_budget_gib", -1.5), ("chunk_length", 0)],
)
def test_a_setting_out_of_bounds_is_refused_by_its_key(key: str, value: float) -> None:
    settings: dict[str, Any] = {key: value}
    with pytest.raises(UserError, match=rf"buffer\.{key} must be .*, got {value}"):
        ReplayConfig(**settings)


@pytest.mark.parametrize("cross_episodes", [True, False])
@pytest.mark.parametrize("store_latents", [True, False])
def test_the_plan_is_what_the_buffer_then_owns(cross_episodes: bool, store_latents: bool) -> None:
    buffer = make_buffer(num_envs=3, capacity=101, cross_episodes=cross_episodes, store_latents=store_latents)
    plan = buffer.plan
    assert plan.nbytes == buffer.nbytes() == sum(plan.part_bytes.values())
    assert plan.num_rows == 4 * (26 + 2 * 3)
    assert plan.part_bytes["observations"] == plan.num_rows * (12 + 24)
    latent_bytes = (2 * 2 + 3) * store_latents
    assert plan.arena_bytes == plan.num_rows * (12 + 24 + latent_bytes + 4 * 4 + 4 + 3)


def test_a_spec_of_an_environment_has_its_fields_and_the_defaults() -> None:
    env = EnvSpec("world", {"pose": ArraySpec((3,))}, ActionSpec(2, True), num_envs=4)
    spec = ReplaySpec.of(env, window_length=9)
    assert spec == ReplaySpec(ReplayConfig(), env.observation, env.action, 4, 9, None)
    assert env.observation["pose"].dtype == np.float32


def test_a_window_without_a_step_to_train_on_is_refused() -> None:
    for length in (0, 1):
        with pytest.raises(UserError, match=f"window_length must be at least 2, got {length}"):
            request(window_length=length)
