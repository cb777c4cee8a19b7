"""An update with a non-finite loss or gradient leaves all learned values unchanged."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reverie.buffers import SequenceBatch
from reverie.workflows import UpdateOutput
from reverie.workflows.world_models import DreamerWorkflow

from ..runs.helpers import tensors_in
from .tiny import make_batch, parameters, tiny_workflow

NAN, INF = float("nan"), float("inf")
PHASES = ["update", "update_world_model"]
SPOILT = {
    "update": "world_model.encoder.mlp.0.weight",
    "update_world_model": "world_model.rssm.core.mix_weight",
}


def everything(workflow: DreamerWorkflow) -> dict[str, Tensor]:
    """Return copies of all tensors of a workflow by path: parameters, optimizers, averages."""
    found = {name: value.clone() for name, value in tensors_in(workflow.state_dict()).items()}
    wanted = (
        "normalizer.low",
        "slow_critic.",
        "/momentum/",
        "/mean_square/",
        "/updates",
        "/beta2_power",
        "/noise",
    )
    assert all(any(part in name for name in found) for part in wanted)
    return found


def differing(workflow: DreamerWorkflow, before: dict[str, Tensor]) -> set[str]:
    return {name for name, value in everything(workflow).items() if not torch.equal(value, before[name])}


def with_bad_reward(batch: SequenceBatch, value: float) -> SequenceBatch:
    reward = batch.reward.clone()
    reward[1, 3] = value
    return replace(batch, reward=reward)


def update_with_bad_gradient(
    workflow: DreamerWorkflow, name: str, phase: str, batch: SequenceBatch
) -> UpdateOutput:
    """Run an update during which one entry of one gradient is infinite."""

    def spoil(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[0] = INF
        return gradient

    handle = parameters(workflow)[name].register_hook(spoil)
    try:
        return getattr(workflow, phase)(batch)
    finally:
        handle.remove()


@pytest.fixture
def workflow() -> DreamerWorkflow:
    """Return a workflow with nonzero momenta, squares and averages."""
    workflow = tiny_workflow()
    for _ in range(2):
        workflow.update(make_batch(workflow))
    return workflow


@pytest.mark.parametrize(
    "value, phase",
    [*((NAN, phase) for phase in PHASES), (INF, "update"), (-INF, "update")],
)
def test_a_bad_reward_in_the_batch_changes_nothing_but_the_noise(
    workflow: DreamerWorkflow, value: float, phase: str
) -> None:
    before = everything(workflow)
    updated = getattr(workflow, phase)(with_bad_reward(make_batch(workflow), value))
    assert not bool(updated.finite) and not bool(updated.metrics["loss/total"].isfinite())
    assert differing(workflow, before) == {"/noise/update"}
    assert all(p.grad is None for p in parameters(workflow).values())


@pytest.mark.parametrize("phase", PHASES)
def test_one_infinite_entry_of_one_gradient_holds_back_every_network(
    workflow: DreamerWorkflow, phase: str
) -> None:
    before = everything(workflow)
    updated = update_with_bad_gradient(workflow, SPOILT[phase], phase, make_batch(workflow))
    assert bool(updated.metrics["loss/total"].isfinite()) and not bool(updated.finite)
    bad = ~updated.gradient_norms.isfinite()
    assert [name for name, b in zip(updated.gradient_names, bad, strict=True) if b] == [SPOILT[phase]]
    assert differing(workflow, before) == {"/noise/update"}


def test_an_infinite_reward_is_the_outermost_bin_of_the_reward_head_and_is_learned(
    workflow: DreamerWorkflow,
) -> None:
    before = everything(workflow)
    assert bool(workflow.update_world_model(with_bad_reward(make_batch(workflow), INF)).finite)
    assert "/world_model/encoder.mlp.0.weight" in differing(workflow, before)


def test_an_infinite_loss_holds_everything_back_even_where_its_gradients_are_finite(
    workflow: DreamerWorkflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, head = everything(workflow), workflow.world_model.reward
    finite_loss = head.loss
    monkeypatch.setattr(head, "loss", lambda logits, target: finite_loss(logits, target) + INF)
    updated = workflow.update(make_batch(workflow))
    assert bool(updated.gradient_norms.isfinite().all()) and not bool(updated.finite)
    assert differing(workflow, before) == {"/noise/update"}


def test_a_bad_gradient_of_the_world_model_holds_back_the_controller_and_the_other_way_round() -> None:
    for name in (SPOILT["update"], "controller.actor.out.bias"):
        workflow = tiny_workflow()
        # Before the first update, momenta are zero and powers are one.
        before = everything(workflow)
        update_with_bad_gradient(workflow, name, "update", make_batch(workflow))
        assert differing(workflow, before) == {"/noise/update"}


def test_learning_goes_on_as_if_the_bad_update_had_never_been(workflow: DreamerWorkflow) -> None:
    undisturbed = tiny_workflow()
    undisturbed.load_state_dict(copy.deepcopy(workflow.state_dict()))
    workflow.update(with_bad_reward(make_batch(workflow), NAN))
    workflow.noise["update"].set_state(undisturbed.noise["update"].get_state())
    batch = make_batch(workflow)
    ours, theirs = workflow.update(batch), undisturbed.update(batch)
    assert bool(ours.finite) and not differing(workflow, everything(undisturbed))
    assert all(torch.equal(value, theirs.metrics[name]) for name, value in ours.metrics.items())


def test_the_noise_goes_on_by_as_many_draws_as_for_a_good_batch(workflow: DreamerWorkflow) -> None:
    other = tiny_workflow()
    other.load_state_dict(copy.deepcopy(workflow.state_dict()))
    batch = make_batch(workflow)
    workflow.update(batch)
    other.update(with_bad_reward(batch, NAN))
    for name, noise in workflow.noise.items():
        assert torch.equal(noise.get_state(), other.noise[name].get_state())


def test_a_finite_update_names_a_norm_for_every_tensor_that_it_trains(workflow: DreamerWorkflow) -> None:
    updated = workflow.update(make_batch(workflow))
    assert updated.finite.shape == () and bool(updated.finite)
    trained = {name for name, p in parameters(workflow).items() if p.requires_grad}
    assert set(updated.gradient_names) == trained and updated.gradient_norms.shape == (len(trained),)
    norms = [updated.metrics[f"{part}/gradient_norm"] for part in ("world_model", "actor", "critic")]
    torch.testing.assert_close(updated.gradient_norms.norm(), torch.stack(norms).norm())


def test_a_loss_that_is_switched_off_has_gradients_of_norm_zero() -> None:
    workflow = tiny_workflow(switched_off=["reward"])
    updated = workflow.update_world_model(make_batch(workflow))
    norms = dict(zip(updated.gradient_names, updated.gradient_norms.tolist(), strict=True))
    assert bool(updated.finite)
    zero = {name for name, norm in norms.items() if norm == 0.0}
    assert zero == {name for name in norms if name.startswith("world_model.reward.")} != set()
