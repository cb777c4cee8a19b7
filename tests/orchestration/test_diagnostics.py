"""A run's memory diagnostics match the values of its components."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from heapwatch.counters.process import memory_counters

from reverie.checkpoints.run_folder import load_run
from reverie.orchestration.orchestrator import Parts, diagnostics
from reverie.orchestration.recipes import recipe_of


@pytest.fixture
def parts(cartpole_run: Path, tmp_path: Path) -> Iterator[Parts]:
    made = recipe_of(load_run(str(cartpole_run))).build(load_run(str(cartpole_run)), tmp_path)
    yield made
    made.environment.close()


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
