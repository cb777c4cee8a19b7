"""What a run says about its memory is what its parts say."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reverie.orchestration.build import Parts, build
from reverie.orchestration.diagnostics import Diagnostics
from reverie.orchestration.run_folder import load_run
from reverie.utils.memory import process_rss_mb


@pytest.fixture
def parts(cartpole_run: Path, tmp_path: Path) -> Iterator[Parts]:
    made = build(load_run(str(cartpole_run)), tmp_path)
    yield made
    made.environment.close()


def bytes_of(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_sizes_are_those_of_the_parts(parts: Parts) -> None:
    tags = Diagnostics().read(parts)
    assert tags["memory/replay/size_mb"] == parts.replay.nbytes() / 1e6
    assert tags["buffer/replay/obs_bytes"] + tags["buffer/replay/aux_bytes"] == parts.replay.nbytes()
    modules = [parts.workflow.world_model, parts.workflow.controller]
    networks = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    assert tags["memory/networks/size_mb"] == bytes_of(networks) / 1e6
    # LaProp holds two numbers for each trained one, and a handful of counters.
    optimizers_bytes = tags["memory/optimizers/size_mb"] * 1e6
    assert 0 < optimizers_bytes - 2 * 4 * parts.workflow.num_parameters < 100


def test_the_replay_is_described_by_its_own_numbers(parts: Parts) -> None:
    collected = parts.workflow.collect_step(arrived := parts.environment.reset())
    parts.replay.add(arrived, collected.action, collected.latent)
    tags = Diagnostics().read(parts)
    told = {
        tag.removeprefix("buffer/replay/"): v for tag, v in tags.items() if tag.startswith("buffer/replay/")
    }
    assert told == parts.replay.stats()
    assert (told["total_steps"], told["num_episodes"], told["fill"]) == (1, 1, 0.001)


def test_growth_is_the_difference_from_the_report_before(parts: Parts) -> None:
    diagnostics = Diagnostics()

    def growth() -> dict[str, float]:
        tags = diagnostics.read(parts)
        return {
            part: tags[f"memory/{part}/growth_mb_per_report"] for part in ("replay", "networks", "optimizers")
        }

    nothing = {"replay": 0.0, "networks": 0.0, "optimizers": 0.0}
    assert growth() == nothing  # a first report has none before it
    parts.workflow.controller.register_buffer("leak", torch.zeros(250_000))
    assert growth() == {"replay": 0.0, "networks": pytest.approx(1.0), "optimizers": 0.0}
    assert growth() == nothing
    del parts.workflow.controller.leak
    assert growth()["networks"] == pytest.approx(-1.0)


def test_the_process_is_measured_in_units_of_a_million_bytes(parts: Parts) -> None:
    before = process_rss_mb()
    held = torch.ones(25_000_000)
    tags = Diagnostics().read(parts)
    assert 90 < tags["debug/cpu/rss_mb"] - before < 150
    assert held.nbytes == 100e6


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_without_a_gpu_its_tags_are_there_and_zero(parts: Parts) -> None:
    tags = Diagnostics().read(parts)
    names = [f"debug/gpu/{kind}_mb" for kind in ("alloc", "reserved", "max_alloc", "max_reserved")]
    names += ["train/memory/gpu_allocated_gb", "train/memory/gpu_reserved_gb"]
    assert [tags[name] for name in names] == [0.0] * 6
