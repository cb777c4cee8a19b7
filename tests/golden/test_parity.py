"""Tokens, latents, losses, gradients and updates match the author's implementation."""

import pytest
import torch
from torch import Tensor

from reverie.models import Noise

from .reference import CASES, Golden, all_parameters, load

MODE = Noise(None, torch.device("cpu"))

# With every action at its mean, the gradient of a continuous policy's mean is exactly zero: log p(a) is flat
# at a = mean. The reference computes the mean twice, with two compiled programs, and records their rounding
# difference as a gradient of 1e-7. LaProp's normalization amplifies it to full steps. This noise cannot be
# reproduced, so only this head is moved along the recorded path, in proportion to the step sizes. The
# remaining difference appears in the critic's last layer (2e-4 instead of 1e-4). It learns from
# the imagined actions.
MEAN_HEAD = ("controller.actor.out.weight", "controller.actor.out.bias")
MOVED = (0.0, 1 / 9, 3 / 9, 6 / 9, 1.0)


def relative(ours: Tensor, theirs: Tensor) -> float:
    """Return the norm of the difference over the norm of the reference."""
    ours = ours.detach()
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12))


@pytest.fixture(params=CASES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return load(request.param)


def recorded(golden: Golden, name: str) -> Tensor:
    return torch.from_numpy(golden.arrays[f"out/{name}"])


def test_tokens_and_latents_equal_the_reference(golden: Golden) -> None:
    world_model = golden.workflow.world_model
    tokens, observed = world_model.observe(golden.batch(0), MODE)
    posterior = observed.posterior
    assert relative(tokens, recorded(golden, "tokens")) < 1e-5
    assert relative(posterior.deter, recorded(golden, "feat_deter")) < 1e-4
    assert relative(observed.posterior_logits, recorded(golden, "feat_logit")) < 1e-4
    torch.testing.assert_close(posterior.stoch.detach(), recorded(golden, "feat_stoch"), atol=1e-6, rtol=0)


def losses_by_reference_name(golden: Golden) -> dict[str, Tensor]:
    losses, _, _ = golden.workflow.losses(golden.batch(0), MODE)
    shape = losses["reward"].shape
    image = "vector" if golden.case == "vector" else "image"
    return {
        image: losses[f"decoder/{image}"],
        "dyn": losses["dynamics"],
        "rep": losses["representation"],
        "rew": losses["reward"],
        "con": losses["continue"],
        "policy": losses["policy"].mean(1).unflatten(0, shape),
        "value": losses["value"].mean(1).unflatten(0, shape),
        "repval": losses["replay_value"],
    }


def test_every_loss_at_every_step_equals_the_reference(golden: Golden) -> None:
    ours = losses_by_reference_name(golden)
    theirs = {name.removeprefix("out/losses/") for name in golden.arrays if name.startswith("out/losses/")}
    assert ours.keys() == theirs
    for name, loss in ours.items():
        torch.testing.assert_close(
            loss.detach(),
            recorded(golden, f"losses/{name}"),
            rtol=1e-4,
            atol=1e-6,
            msg=lambda m, n=name: f"{n}: {m}",
        )


def test_the_return_normaliser_equals_the_reference(golden: Golden) -> None:
    golden.workflow.losses(golden.batch(0), MODE)
    normalizer = golden.workflow.controller.normalizer
    assert float(normalizer.low) == pytest.approx(float(recorded(golden, "retnorm/lo/value")), rel=1e-4)
    assert float(normalizer.high) == pytest.approx(float(recorded(golden, "retnorm/hi/value")), rel=1e-4)


def test_every_gradient_equals_the_reference(golden: Golden) -> None:
    losses, _, _ = golden.workflow.losses(golden.batch(0), MODE)
    total = golden.workflow.total(losses)
    assert float(total.detach()) == pytest.approx(float(recorded(golden, "loss")), rel=1e-5)
    total.backward()
    theirs = golden.named("grad")
    ours = {name: p.grad for name, p in all_parameters(golden.workflow).items() if p.requires_grad}
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert gradient is not None, name
        if golden.case == "vector" and name in MEAN_HEAD:
            assert float(gradient.norm()) < 1e-6 and float(theirs[name].norm()) < 1e-6, name
        else:
            assert relative(gradient, theirs[name]) < 1e-3, name


def test_five_updates_equal_the_reference(golden: Golden) -> None:
    workflow = golden.workflow
    workflow.noise["update"] = MODE
    before, theirs = golden.named("param0"), golden.named("param5")
    ours = all_parameters(workflow)
    for update in range(5):
        metrics = workflow.update(golden.batch(update % 2)).metrics
        loss = float(golden.arrays[f"train/loss{update}"])
        norm = float(golden.arrays[f"train/grad_norm{update}"])
        assert float(metrics["loss/total"]) == pytest.approx(loss, rel=1e-4), update
        our_norm = torch.stack(
            [metrics[f"{part}/gradient_norm"] for part in ("world_model", "actor", "critic")]
        ).norm()
        assert float(our_norm) == pytest.approx(norm, rel=1e-3), update
        for name in MEAN_HEAD if golden.case == "vector" else ():
            ours[name].data.copy_(before[name] + (theirs[name] - before[name]) * MOVED[update])
    for name, parameter in ours.items():
        noisy = golden.case == "vector" and "critic.out" in name
        assert relative(parameter, theirs[name]) < (3e-4 if noisy else 1e-4), name
