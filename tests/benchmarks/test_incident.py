"""The claims of the incident reports: one complete guard of acting suffices, half a guard does not."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from benchmarks.incident.acting import ActingRow, Actor, acting_rows, measure_acting
from benchmarks.incident.command import main
from benchmarks.incident.holding import KeptArray, StoredLoss, kept_arrays, stored_losses
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import typed
from reverie.orchestration.recipes import recipe_of
from reverie.testing.faults import Detached

from ..runs.fresh import in_a_fresh_process
from ..runs.helpers import CARTPOLE, CATCH, error_of

STEPS = 20
# The allocator's count may be off by these bytes, because it caches freed blocks.
ALLOCATORS_OWN = 4096
GROWING = (Detached.half_returned, Detached.half_stoch, Detached.none)
Rows = dict[tuple[bool, Detached], ActingRow]


def catch() -> DreamerTrainConfig:
    return typed(compose_jobs(CATCH)[0], DreamerTrainConfig)


def measured_rows() -> Rows:
    # The first measurement in a process allocates memory that stays.
    measure_acting(catch(), True, Detached.full, STEPS)
    return {(row.no_grad, row.detached): row for row in acting_rows(catch(), STEPS)}


@pytest.fixture(scope="module")
def rows() -> Rows:
    # In a fresh process, no thread of the test runner allocates at the same time.
    return in_a_fresh_process(measured_rows)


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, StoredLoss]]:
    config = catch()
    parts = recipe_of(config).build(config, tmp_path_factory.mktemp("run"))
    with closing(parts.environment):
        actor = Actor(parts)
        while not parts.replay.can_sample:
            actor.act(1)
        yield {row.kept: row for row in stored_losses(parts, config.training.batch_size)}


@pytest.fixture(scope="module")
def arrays() -> dict[str, KeptArray]:
    return {row.kept: row for row in kept_arrays(np.zeros((100, 64, 64, 3), np.uint8))}


@pytest.mark.parametrize("guards", [*((True, detached) for detached in Detached), (False, Detached.full)])
def test_one_complete_guard_prevents_growth(guards: tuple[bool, Detached], rows: Rows) -> None:
    row = rows[guards]
    assert [reading.nodes for reading in row.readings] == [0, 0, 0]
    least_growth = min(rows[False, detached].readings[-1].held_bytes for detached in GROWING)
    # The difference is due to freed blocks cached by the allocator.
    assert abs(row.readings[-1].held_bytes) < 0.01 * least_growth
    assert not row.state_has_graph and row.holders == ()


@pytest.mark.parametrize("detached", GROWING)
def test_half_a_detach_without_no_grad_grows_by_as_much_in_every_step(detached: Detached, rows: Rows) -> None:
    start, half_way, end = rows[False, detached].readings
    assert (start.steps, half_way.steps, end.steps) == (0, STEPS // 2, STEPS)
    assert half_way.nodes - start.nodes == end.nodes - half_way.nodes > STEPS
    assert half_way.held_bytes == pytest.approx(end.held_bytes / 2, rel=0.05)


@pytest.mark.parametrize("detached", GROWING)
def test_only_the_cached_state_retains_growing_memory(detached: Detached, rows: Rows) -> None:
    row = rows[False, detached]
    assert row.state_has_graph
    assert {path.rpartition(".")[0] for path in row.holders} == {"workflow.world_model.rssm._state"}
    assert row.given_back_bytes >= row.readings[-1].held_bytes


def test_detaching_only_outputs_retains_as_much_as_no_detaching(rows: Rows) -> None:
    half, none = rows[False, Detached.half_returned], rows[False, Detached.none]
    assert half.nodes_per_step == none.nodes_per_step
    assert half.bytes_per_agent_step == pytest.approx(none.bytes_per_agent_step, rel=0.02)


def test_detaching_only_the_latents_holds_less_through_the_recurrent_state(rows: Rows) -> None:
    half, none = rows[False, Detached.half_stoch], rows[False, Detached.none]
    assert half.nodes_per_step < none.nodes_per_step
    assert half.bytes_per_agent_step < none.bytes_per_agent_step
    assert half.holders == ("workflow.world_model.rssm._state.deter",)


def test_a_stored_loss_holds_its_graph_until_backward_and_then_its_skeleton(
    losses: dict[str, StoredLoss],
) -> None:
    before, after = losses["loss, before backward()"], losses["loss, after backward()"]
    retained = losses["loss, after backward(retain_graph=True)"]
    assert before.nodes == after.nodes == retained.nodes > 100
    assert retained.held_bytes == pytest.approx(before.held_bytes, rel=0.02)
    assert 100 * before.nodes < after.held_bytes < before.held_bytes / 2


def test_a_detached_loss_holds_a_few_kilobytes_at_most_and_no_node(losses: dict[str, StoredLoss]) -> None:
    for kept in ("loss.detach()", "loss.item()"):
        assert losses[kept].nodes == 0
        assert losses[kept].held_bytes < ALLOCATORS_OWN < losses["loss, after backward()"].held_bytes / 4


def test_from_numpy_holds_the_base_of_its_array_and_copies_nothing(arrays: dict[str, KeptArray]) -> None:
    episode = arrays["the episode: an array of 100 frames"].held_bytes
    assert episode == pytest.approx(100 * 64 * 64 * 3, rel=0.01)
    assert abs(arrays["the episode and torch.from_numpy of one frame"].held_bytes - episode) < ALLOCATORS_OWN
    for kept in ("torch.from_numpy of one frame alone", "a NumPy view of one frame alone"):
        assert arrays[kept].shown_bytes == 64 * 64 * 3
        assert arrays[kept].held_bytes == pytest.approx(episode, abs=1000)


def test_from_numpy_alone_is_no_leak_and_a_copy_lets_the_base_go(arrays: dict[str, KeptArray]) -> None:
    episode = arrays["the episode: an array of 100 frames"]
    many = arrays["the episode, 100 such tensors made and dropped"]
    assert many.held_bytes == pytest.approx(episode.held_bytes, abs=1000)
    for kept in ("the clone() of torch.from_numpy of one frame", "torch.from_numpy of np.stack of 16 frames"):
        assert arrays[kept].held_bytes == pytest.approx(arrays[kept].shown_bytes, abs=1000)


def test_the_command_prints_the_tables_and_writes_them_with_versions_and_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*CARTPOLE, "env.num_envs=2", "incident.steps=10", f"incident.out={tmp_path / 'out'}"])
    shown = capsys.readouterr().out
    for words in ("half (returned, not cached)", "loss, after backward()", "torch.from_numpy of one frame"):
        assert words in shown
    [path] = [path for path in tmp_path.rglob("*") if path.is_file()]
    found = json.loads(path.read_text())
    assert path.name == "reenactment.json"
    assert found["command"].startswith("python -m benchmarks.incident experiment=dreamer_cartpole ")
    assert {"reverie", "torch", "in_use_counter"} <= found["versions"].keys()
    guards = [(row["no_grad"], row["detached"]) for row in found["acting"]]
    assert len(set(guards)) == 8 and found["num_envs"] == 2
    assert [row["state_has_graph"] for row in found["acting"]] == [True, True, True, *[False] * 5]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("incident.fault=none", "incident.fault=none is not a setting of benchmarks.incident"),
        ("incident.steps=9", "incident.steps must be at least 10, got 9."),
        ("run_dir=runs/a", "benchmarks.incident neither makes nor reads a run. Omit run_dir and resume."),
        ("incident.out=file/below", "incident.out=file/below cannot be created: "),
        ("model=debugg", "debugg"),
    ],
)
def test_a_mistake_is_named_in_one_line_and_nothing_is_written(
    argument: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert message in error_of(capsys, lambda: main([argument, "device=cpu"]))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
