"""The non-finite guard: its messages, its saved files, its rollbacks and its stop."""

import logging
from pathlib import Path

import pytest
import torch

from reverie.buffers import SequenceBatch
from reverie.orchestration.dreamer.nonfinite import NonFiniteGuard
from reverie.utils.state_files import load_state
from reverie.workflows import UpdateOutput
from reverie.workflows.world_models import DreamerWorkflow

from ..gpu import synchronizing_is
from ..runs.helpers import differing
from ..workflows.test_nonfinite import NAN, with_bad_reward
from ..workflows.tiny import make_batch, parameters, tiny_workflow

ACTOR_BIAS = "controller.actor.out.bias"


@pytest.fixture
def workflow() -> DreamerWorkflow:
    return tiny_workflow()


@pytest.fixture
def guard(tmp_path: Path, workflow: DreamerWorkflow) -> NonFiniteGuard:
    return NonFiniteGuard(tmp_path, max_in_a_row=3, state=workflow.state_dict)


def good(guard: NonFiniteGuard, step: int, workflow: DreamerWorkflow) -> None:
    batch = make_batch(workflow)
    guard.check(step, workflow.update(batch), batch)


def bad(guard: NonFiniteGuard, step: int, workflow: DreamerWorkflow) -> tuple[UpdateOutput, SequenceBatch]:
    batch = with_bad_reward(make_batch(workflow), NAN)
    updated = workflow.update(batch)
    guard.check(step, updated, batch)
    return updated, batch


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_finite_updates_leave_no_trace(
    guard: NonFiniteGuard, workflow: DreamerWorkflow, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(4):
        good(guard, step, workflow)
    assert (guard.total, guard.in_a_row) == (0, 0)
    assert not guard.folder.exists() and not caplog.records


def test_a_bad_reward_is_named_as_the_first_and_the_batch_is_kept_bit_for_bit(
    guard: NonFiniteGuard, workflow: DreamerWorkflow, caplog: pytest.LogCaptureFixture
) -> None:
    updated, batch = bad(guard, 1234, workflow)
    (record,) = caplog.records
    message = record.getMessage()
    assert record.levelno == logging.WARNING
    assert message.startswith("step 1,234: skipped update: non-finite batch/reward (+")
    assert str(guard.folder / "step_000001234.safetensors") in message
    assert names_in(guard.folder) == ["step_000001234.json", "step_000001234.safetensors"]
    evidence = load_state(guard.folder, "step_000001234")
    assert evidence["step"] == 1234
    assert evidence["not_finite"][:2] == ["batch/reward", "loss/reward"]
    assert "gradient/world_model.reward.out.weight" in evidence["not_finite"]
    kept = evidence["batch"]
    torch.testing.assert_close(kept["reward"], batch.reward, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(kept["observation"]["vector"], batch.observation["vector"])
    assert batch.context is not None and torch.equal(kept["context"]["deter"], batch.context.deter)
    for name in ("action", "is_first", "is_last", "is_terminal"):
        assert torch.equal(kept[name], getattr(batch, name))
    assert kept["positions"]["start"].tolist() == batch.positions.start.tolist()
    assert evidence["metrics"].keys() == updated.metrics.keys()
    assert torch.equal(evidence["metrics"]["kl"], updated.metrics["kl"])


def test_what_is_kept_first_makes_the_same_bad_update_again(
    guard: NonFiniteGuard, workflow: DreamerWorkflow
) -> None:
    _, batch = bad(guard, 5, workflow)
    bad(guard, 6, workflow)
    assert load_state(guard.folder, "step_000000006")["workflow"] is None
    evidence = load_state(guard.folder, "step_000000005")
    again = tiny_workflow()
    again.load_state_dict(evidence["workflow"])
    # The saved and the restored workflow both draw from this generator.
    assert differing(again.state_dict(), workflow.state_dict()) == {"/noise/update"}
    other = NonFiniteGuard(guard.folder.parent / "again", max_in_a_row=3, state=again.state_dict)
    other.folder.parent.mkdir()
    other.check(5, again.update(batch), batch)
    assert load_state(other.folder, "step_000000005")["not_finite"] == evidence["not_finite"]


def test_a_bad_gradient_behind_finite_losses_is_named_alone(
    guard: NonFiniteGuard, workflow: DreamerWorkflow, caplog: pytest.LogCaptureFixture
) -> None:
    handle = parameters(workflow)[ACTOR_BIAS].register_hook(lambda g: torch.full_like(g, float("inf")))
    good(guard, 7, workflow)
    handle.remove()
    assert load_state(guard.folder, "step_000000007")["not_finite"] == [f"gradient/{ACTOR_BIAS}"]
    assert f"non-finite gradient/{ACTOR_BIAS}; batch and workflow saved" in caplog.text


def test_a_batch_of_a_run_without_stored_latents_is_kept_too(
    guard: NonFiniteGuard, workflow: DreamerWorkflow
) -> None:
    batch = with_bad_reward(make_batch(workflow, has_context=False), NAN)
    guard.check(3, workflow.update(batch), batch)
    assert load_state(guard.folder, "step_000000003")["batch"]["context"] is None


def test_only_bad_updates_in_a_row_ask_for_a_rollback(
    guard: NonFiniteGuard, workflow: DreamerWorkflow
) -> None:
    asked = []
    for step, update in enumerate([bad, bad, good, bad, bad, bad]):
        update(guard, step, workflow)
        asked.append(guard.has_too_many)
    assert asked == [False] * 5 + [True]
    assert guard.total == 5 and guard.in_a_row == 3 and not guard.has_rolled_back


def test_the_second_time_the_run_must_stop_and_says_why(
    guard: NonFiniteGuard, workflow: DreamerWorkflow
) -> None:
    for step in range(3):
        bad(guard, step, workflow)
    assert "3 updates in a row" in guard.stop_sentence() and "is not possible" in guard.stop_sentence()
    guard.rolled_back()
    assert not guard.has_too_many and guard.has_rolled_back and guard.total == 3
    asked = []
    for step in range(3):
        bad(guard, step, workflow)
        asked.append(guard.has_too_many)
    assert asked == [False, False, True]
    sentence = guard.stop_sentence()
    assert "training.max_consecutive_nonfinite=3" in sentence and "did not help" in sentence
    assert str(guard.folder) in sentence and "\n" not in sentence


def test_evidence_is_kept_of_five_steps_at_most_and_of_each_step_once(
    guard: NonFiniteGuard, workflow: DreamerWorkflow, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (0, 0, 1, 2, 3, 4, 5):
        bad(guard, step, workflow)
    kept = [f"step_{step:09d}" for step in range(5)]
    assert names_in(guard.folder) == sorted(f"{n}.{end}" for n in kept for end in ("json", "safetensors"))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == guard.total == 7
    assert ["earlier batches are" in message for message in told] == [False, True, *[False] * 4, True]


def test_a_folder_that_cannot_be_written_costs_the_evidence_and_not_the_run(
    tmp_path: Path, workflow: DreamerWorkflow, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "nonfinite").write_text("a file in the place of the folder")
    guard = NonFiniteGuard(tmp_path, max_in_a_row=3, state=dict)
    bad(guard, 1, workflow)
    assert guard.in_a_row == 1 and "the batch could not be saved (" in caplog.text


def test_evidence_that_could_only_be_written_in_part_is_taken_away(
    guard: NonFiniteGuard, workflow: DreamerWorkflow, caplog: pytest.LogCaptureFixture
) -> None:
    # The names can be written, but not the batch.
    (guard.folder / "step_000000001.safetensors").mkdir(parents=True)
    bad(guard, 1, workflow)
    assert "the batch could not be saved (" in caplog.text
    assert names_in(guard.folder) == ["step_000000001.safetensors"]


def test_counts_outlive_the_process(guard: NonFiniteGuard, workflow: DreamerWorkflow, tmp_path: Path) -> None:
    bad(guard, 0, workflow)
    guard.rolled_back()
    bad(guard, 1, workflow)
    other = NonFiniteGuard(tmp_path, max_in_a_row=3, state=dict)
    other.load_state_dict(guard.state_dict())
    assert (other.total, other.in_a_row, other.has_rolled_back) == (2, 1, True)
    for step in (2, 3):
        bad(other, step, workflow)
    assert other.has_too_many and other.has_rolled_back
    resumed = NonFiniteGuard(tmp_path, max_in_a_row=3, state=dict)
    # The run ended with exit code 4, and the cause is removed.
    resumed.load_state_dict(other.state_dict())
    assert (resumed.total, resumed.has_too_many, resumed.has_rolled_back) == (4, False, True)


@pytest.mark.gpu
def test_on_a_gpu_neither_update_nor_guard_makes_the_host_wait_and_the_verdict_is_one_update_late(
    tmp_path: Path,
) -> None:
    workflow = tiny_workflow(device=torch.device("cuda"))
    guard = NonFiniteGuard(tmp_path, max_in_a_row=3, state=dict)
    # First calls of CUDA libraries may synchronize.
    workflow.update(make_batch(workflow))
    batches = [with_bad_reward(make_batch(workflow), NAN), make_batch(workflow)]
    with synchronizing_is("error"):
        guard.check(1, workflow.update(batches[0]), batches[0])
        late = guard.in_a_row
        updated = workflow.update(batches[1])
    assert late == 0
    guard.check(2, updated, batches[1])
    assert (guard.total, guard.in_a_row) == (1, 1)
    guard.settle()
    assert (guard.total, guard.in_a_row) == (1, 0)
    assert names_in(guard.folder) == ["step_000000001.json", "step_000000001.safetensors"]
