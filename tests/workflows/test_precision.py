"""Reduced precision and other devices give the same learning."""

from typing import Any

import pytest
import torch

from reverie.models import Noise
from reverie.workflows.world_models.controller import imagine

from ..models.tiny import CPU, MODE
from .tiny import IMAGE, VECTOR, make_batch, parameters, snapshot, tiny_workflow

CUDA = torch.device("cuda")


def test_an_update_in_bfloat16_gives_every_parameter_a_gradient() -> None:
    # Imagination casts the weights without gradients. Autocast may cache a cast only if it has a gradient.
    workflow = tiny_workflow(IMAGE | VECTOR, dtype=torch.bfloat16)
    losses, _, observed = workflow.losses(make_batch(workflow), workflow.noise["update"])
    assert all(loss.dtype == torch.float32 and bool(loss.isfinite().all()) for loss in losses.values())
    assert observed.posterior.deter.dtype == torch.float32
    workflow.total(losses).backward()
    for name, parameter in parameters(workflow).items():
        if name.startswith("controller.slow_critic."):
            assert parameter.grad is None
        else:
            assert parameter.grad is not None and parameter.grad.dtype == torch.float32, name
            assert bool(parameter.grad.isfinite().all()) and bool(parameter.grad.any()), name


def test_every_network_multiplies_in_bfloat16_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = tiny_workflow(dtype=torch.bfloat16)
    world_model, controller = workflow.world_model, workflow.controller
    assert world_model.decoder is not None
    layers = {
        "prior": world_model.rssm.prior,
        "decoder": world_model.decoder.mlp,
        "reward": world_model.reward.mlp,
        "actor": controller.actor.out,
        "critic": controller.critic.mlp,
        "slow critic": controller.slow_critic.mlp,
    }
    seen: dict[str, set[torch.dtype]] = {name: set() for name in layers}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda _module, _input, output, n=name: seen[n].add(output.dtype))
    # The scan reads the weights of the posterior and the core from their layers.
    step = world_model.rssm.observe_step
    seen["scan"] = set()

    def seen_step(*given: Any) -> Any:
        seen["scan"].update(weight.dtype for weight in given[-1])
        return step(*given)

    monkeypatch.setattr(world_model.rssm, "observe_step", seen_step)
    workflow.update(make_batch(workflow))
    assert seen == {name: {torch.bfloat16} for name in seen}


def test_imagined_features_have_the_dtype_of_products() -> None:
    workflow = tiny_workflow()
    world_model, actor = workflow.world_model, workflow.controller.actor
    with torch.autocast("cpu", torch.bfloat16):
        imagined = imagine(world_model, actor, world_model.rssm.initial(2), 3, workflow.noise["update"])
    assert imagined.feature.dtype is torch.bfloat16
    kept = (imagined.action, imagined.reward, imagined.discount, imagined.policy.entropy())
    assert all(x.dtype is torch.float32 for x in kept)


@pytest.mark.parametrize("phase", ["update", "update_world_model"])
@pytest.mark.parametrize("is_discrete", [True, False], ids=["discrete", "continuous"])
def test_bfloat16_updates_keep_parameters_and_latents_in_single_precision(
    phase: str, is_discrete: bool
) -> None:
    workflow = tiny_workflow(is_discrete=is_discrete, dtype=torch.bfloat16)
    updated = getattr(workflow, phase)(make_batch(workflow))
    assert all(p.dtype == torch.float32 and bool(p.isfinite().all()) for p in parameters(workflow).values())
    assert updated.deter.dtype == torch.float32
    assert all(value.dtype == torch.float32 for value in updated.metrics.values())


def test_bfloat16_losses_are_close_to_those_in_single_precision() -> None:
    # A latent with two almost equal classes may flip, so the test compares means over many steps.
    means = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        workflow = tiny_workflow(IMAGE, dtype=dtype)
        losses, _, _ = workflow.losses(make_batch(workflow, batch=8), MODE)
        means.append({name: float(loss.detach().mean()) for name, loss in losses.items()})
    for name in ("decoder/image", "reward", "continue", "value", "replay_value"):
        assert means[1][name] == pytest.approx(means[0][name], rel=0.05), name


@pytest.mark.gpu
def test_updates_on_a_gpu_equal_those_on_the_processor() -> None:
    runs = []
    with torch.backends.cudnn.flags(allow_tf32=False):
        for device in (CPU, CUDA):
            torch.manual_seed(0)
            workflow = tiny_workflow(IMAGE, device=device)
            workflow.noise["update"] = Noise(None, device)
            losses = [float(workflow.update(make_batch(workflow)).metrics["loss/total"]) for _ in range(3)]
            runs.append((losses, snapshot(workflow.world_model) | snapshot(workflow.controller)))
    assert runs[1][0] == pytest.approx(runs[0][0], rel=1e-3)
    for name, value in runs[0][1].items():
        difference = (runs[1][1][name].cpu() - value).norm() / value.norm().clamp(min=1e-12)
        assert float(difference) < 1e-3, name


@pytest.mark.gpu
def test_a_bfloat16_update_on_a_gpu_gives_every_parameter_a_gradient() -> None:
    workflow = tiny_workflow(IMAGE | VECTOR, dtype=torch.bfloat16, device=CUDA)
    losses, _, _ = workflow.losses(make_batch(workflow), workflow.noise["update"])
    workflow.total(losses).backward()
    for name, parameter in parameters(workflow).items():
        if parameter.requires_grad:
            assert parameter.grad is not None and bool(parameter.grad.any()), name
    assert workflow.update(make_batch(workflow)).deter.device.type == "cuda"
