"""Gradients of each single loss with respect to each network."""

import pytest
import torch
from torch import nn

from reverie.workflows.world_models import DreamerWorkflow

from .tiny import IMAGE, VECTOR, make_batch, parameters, tiny_workflow

GROUPS = {
    "world_model.encoder.": "encoder",
    "world_model.rssm.core.": "core",
    "world_model.rssm.posterior_": "posterior",
    "world_model.rssm.prior.": "prior",
    "world_model.decoder.image.": "image decoder",
    "world_model.decoder.": "vector decoder",
    "world_model.prediction.": "prediction",
    "world_model.reward.": "reward",
    "world_model.continuation.": "continue",
    "controller.actor.": "actor",
    "controller.critic.": "critic",
    "controller.slow_critic.": "slow critic",
}
# A posterior state depends on these.
SEEN = {"encoder", "core", "posterior"}
ROUTES = {
    "decoder/image": SEEN | {"image decoder"},
    "decoder/vector": SEEN | {"vector decoder"},
    # Encoder and posterior receive gradients only through earlier steps.
    "dynamics": SEEN | {"prior"},
    "representation": SEEN,
    "reward": SEEN | {"reward"},
    "continue": SEEN | {"continue"},
    "policy": {"actor"},
    "value": {"critic"},
    "replay_value": SEEN | {"critic"},
}


def group(name: str) -> str:
    return next(label for prefix, label in GROUPS.items() if name.startswith(prefix))


def taught(workflow: DreamerWorkflow, loss: torch.Tensor) -> dict[str, float]:
    """Return the gradient norm of each group that has a gradient."""
    trained = {name: p for name, p in parameters(workflow).items() if p.requires_grad}
    gradients = torch.autograd.grad(loss.mean(), list(trained.values()), allow_unused=True, retain_graph=True)
    norms: dict[str, float] = {}
    for name, gradient in zip(trained, gradients, strict=True):
        if gradient is not None and bool(gradient.any()):
            norms[group(name)] = norms.get(group(name), 0.0) + float(gradient.norm())
    return norms


@pytest.mark.parametrize("is_discrete", [True, False], ids=["discrete", "continuous"])
def test_every_loss_teaches_exactly_the_networks_of_the_routing_table(is_discrete: bool) -> None:
    workflow = tiny_workflow(IMAGE | VECTOR, is_discrete)
    losses, _, _ = workflow.losses(make_batch(workflow), workflow.noise["update"])
    assert losses.keys() == ROUTES.keys()
    for name, loss in losses.items():
        norms = taught(workflow, loss)
        assert norms.keys() == ROUTES[name], name
        assert min(norms.values()) > 1e-7, (name, norms)


def test_no_trained_parameter_is_beyond_the_reach_of_the_losses() -> None:
    workflow = tiny_workflow(IMAGE | VECTOR)
    losses, _, _ = workflow.losses(make_batch(workflow), workflow.noise["update"])
    workflow.total(losses).backward()
    for name, parameter in parameters(workflow).items():
        assert (parameter.grad is None) == name.startswith("controller.slow_critic."), name
        assert parameter.grad is None or bool(parameter.grad.any()), name


def test_the_dynamics_loss_does_not_reach_the_posterior_of_its_own_step() -> None:
    workflow = tiny_workflow()
    batch = make_batch(workflow, time=1)
    losses, _, _ = workflow.losses(batch, workflow.noise["update"], controller=False)
    assert taught(workflow, losses["dynamics"]).keys() == {"core", "prior"}
    assert taught(workflow, losses["representation"]).keys() == SEEN


def test_the_slow_critic_has_no_gradient() -> None:
    workflow = tiny_workflow()
    assert not any(p.requires_grad for p in workflow.controller.slow_critic.parameters())
    heads: list[nn.Module] = [workflow.controller.critic, workflow.controller.actor]
    assert all(p.requires_grad for head in heads for p in head.parameters())


def test_the_warm_up_teaches_the_world_model_alone() -> None:
    workflow = tiny_workflow()
    batch = make_batch(workflow)
    losses, _, _ = workflow.losses(batch, workflow.noise["update"], controller=False)
    assert losses.keys() == {"dynamics", "representation", "decoder/vector", "reward", "continue"}
    assert taught(workflow, workflow.total(losses)).keys() == SEEN | {
        "prior",
        "vector decoder",
        "reward",
        "continue",
    }
