"""Updates captured as a CUDA graph match eager updates, allocate no memory, and support resuming."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from reverie.workflows.world_models import CUDAGraphDreamer, DreamerWorkflow

from .tiny import IMAGE, VECTOR, make_arrival, make_batch, snapshot, tiny_workflow

CUDA = torch.device("cuda")


def captured_from(workflow: DreamerWorkflow) -> CUDAGraphDreamer:
    """Return the same workflow with capture enabled and the same random numbers."""
    other = CUDAGraphDreamer(workflow.env, workflow.config, workflow.device, workflow.autocast_dtype)
    other.load_state_dict(workflow.state_dict())
    return other


@pytest.mark.parametrize("has_context", [True, False])
def test_tensors_pass_through_a_graph_unchanged(has_context: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Capture needs a GPU. Otherwise all calls stay eager, like the first calls on CUDA.
    monkeypatch.setattr(
        "reverie.workflows.world_models.compiled.CUDAGraphCall", lambda function, *_: function
    )
    eager = tiny_workflow(IMAGE | VECTOR)
    captured = captured_from(eager)
    for part in ("update_world_model", "update", "update"):
        arrival, batch = make_arrival(eager), make_batch(eager, has_context=has_context)
        assert torch.equal(
            captured.collect_step(arrival).latent.deter, eager.collect_step(arrival).latent.deter
        )
        expected, found = getattr(eager, part)(batch), getattr(captured, part)(batch)
        assert found.metrics.keys() == expected.metrics.keys()
        assert all(torch.equal(found.metrics[name], value) for name, value in expected.metrics.items())
        assert found.gradient_names == expected.gradient_names and torch.equal(found.stoch, expected.stoch)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", ["update", "update_world_model"])
def test_captured_updates_are_the_eager_ones(part: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    eager = tiny_workflow(IMAGE | VECTOR, dtype=dtype, device=CUDA)
    captured = captured_from(eager)
    # The graph is captured at the fourth call.
    for count in range(8):
        batch = make_batch(eager)
        batch = replace(batch, reward=batch.reward + 0.1 * count)
        expected, found = getattr(eager, part)(batch), getattr(captured, part)(batch)
        assert found.metrics.keys() == expected.metrics.keys()
        for name, value in expected.metrics.items():
            torch.testing.assert_close(found.metrics[name], value.float(), rtol=1e-3, atol=1e-5, msg=name)
        assert found.gradient_names == expected.gradient_names and bool(found.finite)
    states = [snapshot(w.world_model) | snapshot(w.controller) for w in (eager, captured)]
    for name, value in states[0].items():
        difference = (states[1][name] - value).norm() / value.norm().clamp(min=1e-12)
        assert float(difference) < 1e-3, name


@pytest.mark.gpu
def test_captured_acting_is_the_eager_one_and_allocates_the_same_at_every_step() -> None:
    torch.manual_seed(0)
    eager = tiny_workflow(IMAGE | VECTOR, device=CUDA)
    captured = captured_from(eager)
    growth: list[int] = []
    # The graph is captured at the fourth call.
    for count in range(8):
        arrival = make_arrival(eager, is_first=count in (0, 5))
        expected = eager.collect_step(arrival)
        before = torch.cuda.memory_stats()["allocated_bytes.all.current"]
        found = captured.collect_step(arrival)
        growth.append(torch.cuda.memory_stats()["allocated_bytes.all.current"] - before)
        assert np.array_equal(found.action, expected.action)
        torch.testing.assert_close(found.latent.deter, expected.latent.deter, rtol=1e-3, atol=1e-4)
        assert torch.equal(found.latent.stoch, expected.latent.stoch)
    assert growth[-3:] == [0, 0, 0]


@pytest.mark.gpu
def test_a_captured_update_never_asks_the_allocator() -> None:
    workflow = captured_from(tiny_workflow(IMAGE, device=CUDA))
    batch = make_batch(workflow)
    for _ in range(6):
        workflow.update(batch)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(5):
        workflow.update(batch)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.gpu
def test_a_bad_captured_update_is_not_applied_and_its_verdict_outlives_the_next_one() -> None:
    workflow = captured_from(tiny_workflow(VECTOR, device=CUDA))
    good = make_batch(workflow)
    for _ in range(6):
        workflow.update(good)
    before = snapshot(workflow.world_model)
    verdict = workflow.update(replace(good, reward=good.reward * float("nan")))
    assert all(torch.equal(value, before[name]) for name, value in snapshot(workflow.world_model).items())
    workflow.update(good)
    assert not bool(verdict.finite) and not bool(verdict.metrics["loss/reward"].isfinite())
