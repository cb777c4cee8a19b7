"""The memory and the diagnostics that a run reports match the values of its components."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from heapwatch.counters.process import memory_counters
from heapwatch.objects.census import measure_components

from reverie.buffers import ReplayStorage
from reverie.checkpoints.run_folder import load_run
from reverie.models import LEARNERS
from reverie.orchestration.orchestrator import Parts, components, diagnostics
from reverie.orchestration.recipes import recipe_of


@pytest.fixture
def parts(cartpole_run: Path, tmp_path: Path) -> Iterator[Parts]:
    made = recipe_of(load_run(str(cartpole_run))).build(load_run(str(cartpole_run)), tmp_path)
    yield made
    made.environment.close()


def bytes_of(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_sizes_are_those_of_the_parts(parts: Parts) -> None:
    sizes = measure_components(components(parts, {})).sizes
    assert sizes["replay"].pinned_bytes == parts.replay.nbytes()
    assert sizes["replay/observations"].pinned_bytes == parts.replay.plan.part_bytes["observations"]
    modules = [parts.workflow.world_model, parts.workflow.controller]
    networks = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    named = sizes["networks/world_model"].pinned_bytes + sizes["networks/controller"].pinned_bytes
    assert named + sizes["normalizer"].pinned_bytes == bytes_of(networks)
    # LaProp stores two numbers per trained parameter, and a few counters.
    optimizers = sum(sizes[f"optimizers/{learner}"].pinned_bytes for learner in LEARNERS)
    assert 0 < optimizers - 2 * 4 * parts.workflow.num_parameters < 100


def test_the_parts_of_the_replay_add_up_to_it(parts: Parts) -> None:
    assert sum(parts.replay.plan.part_bytes.values()) == parts.replay.nbytes()


def test_a_replay_on_a_gpu_is_held_there_but_for_its_index(parts: Parts) -> None:
    # The components equal those in a plan.
    parts.replay.config.storage = ReplayStorage.cuda
    census = measure_components(components(parts, {}))
    assert census.bytes_by_device["cuda"] == parts.replay.plan.arena_bytes
    assert census.sizes["replay/index"].devices == ("cpu",)


def test_growth_of_a_network_is_reported_at_its_component(parts: Parts) -> None:
    before = measure_components(components(parts, {})).sizes
    parts.workflow.controller.register_buffer("leak", torch.zeros(250_000))
    after = measure_components(components(parts, {})).sizes
    grown = {name: after[name].pinned_bytes - before[name].pinned_bytes for name in after}
    assert {name: size for name, size in grown.items() if size} == {
        "networks": 1_000_000,
        "networks/controller": 1_000_000,
    }


def test_acting_shows_in_the_online_state(parts: Parts) -> None:
    parts.workflow.collect_step(parts.environment.reset())
    sizes = measure_components(components(parts, {})).sizes
    state = parts.workflow.world_model.rssm._state
    assert state is not None
    held = bytes_of([state.deter, state.stoch, parts.workflow._prev_action])
    assert sizes["online_state"].pinned_bytes == held


def test_a_part_of_the_loop_is_followed_under_its_name(parts: Parts) -> None:
    sizes = measure_components(components(parts, {"metrics": [torch.zeros(10)]})).sizes
    assert sizes["metrics"].pinned_bytes == 40


def test_the_replay_is_described_by_its_own_numbers(parts: Parts) -> None:
    collected = parts.workflow.collect_step(arrived := parts.environment.reset())
    parts.replay.add(arrived, collected.action, collected.latent)
    tags = diagnostics(memory_counters(), parts)
    told = {
        tag.removeprefix("buffer/replay/"): v for tag, v in tags.items() if tag.startswith("buffer/replay/")
    }
    assert told == parts.replay.stats()
    assert (told["total_steps"], told["num_episodes"], told["fill"]) == (1, 1, 0.001)


def test_the_process_is_measured_in_units_of_a_million_bytes(parts: Parts) -> None:
    tags = diagnostics(memory_counters(), parts)
    assert tags["debug/cpu/rss_mb"] == pytest.approx(psutil.Process().memory_info().rss / 1e6, rel=0.02)


def test_a_run_on_a_cpu_has_no_gpu_tags(parts: Parts) -> None:
    assert not [tag for tag in diagnostics(memory_counters(), parts) if "gpu" in tag]
