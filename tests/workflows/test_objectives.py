"""Decoder-free objectives and loss balancing: literal numbers, slow references, gradient routing."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from reverie.utils.errors import UserError
from reverie.workflows.world_models import DreamerWorkflow, WorldModelConfig
from reverie.workflows.world_models.config import BarlowConfig, DecoderUse, KLConfig, Objective
from reverie.workflows.world_models.objectives import BALANCED, Harmony, barlow, info_nce

from .test_gradient_routing import SEEN, taught
from .tiny import IMAGE, make_batch, parameters, tiny_workflow

CONFIG = BarlowConfig(redundancy_scale=0.25)


def pair(samples: int = 40, dims: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    predicted, noise = (torch.randn(samples, dims, generator=generator).double() for _ in range(2))
    return predicted, 3.0 * predicted + noise + 7.0


def test_barlow_equals_the_correlations_of_numpy() -> None:
    predicted, target = pair()
    loss, alive = barlow(predicted, target, CONFIG)
    # The objective uses unbiased deviations, but averages over n.
    found = np.corrcoef(predicted.numpy(), target.numpy(), rowvar=False)[:6, 6:] * 39 / 40
    off = found[~np.eye(6, dtype=bool)]
    expected = ((found.diagonal() - 1) ** 2).sum() + 0.25 * (off**2).sum()
    assert bool(alive.all()) and float(loss) == pytest.approx(expected, rel=1e-6)


def test_constant_features_have_no_effect_and_no_gradient() -> None:
    predicted, target = pair()
    kept = barlow(predicted[:, :4], target[:, :4], CONFIG)[0]
    # This is a still background.
    target[:, 4:] = 5.0 + 1e-6 * target[:, 4:]
    predicted[:, 5] = 1.0
    predicted.requires_grad_()
    loss, alive = barlow(predicted, target, CONFIG)
    loss.backward()
    assert alive.tolist() == [True] * 4 + [False] * 2
    assert float(loss.detach()) == pytest.approx(float(kept), rel=1e-9)
    assert predicted.grad is not None and bool(predicted.grad.isfinite().all())
    assert bool(predicted.grad[:, :4].any(0).all()) and not bool(predicted.grad[:, 4:].any())


def test_a_prediction_without_variance_has_a_finite_gradient() -> None:
    predicted, target = torch.zeros(8, 2, requires_grad=True), pair(8, 2)[1].float()
    barlow(predicted, target, CONFIG)[0].backward()
    assert predicted.grad is not None and bool(predicted.grad.isfinite().all())


def test_the_order_of_the_batch_does_not_matter() -> None:
    predicted, target = pair()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    for loss in (lambda x, y: barlow(x, y, CONFIG)[0], info_nce):
        torch.testing.assert_close(loss(predicted, target), loss(predicted[order], target[order]))


def test_info_nce_of_equal_logits_is_the_log_of_the_batch_and_of_clear_ones_zero() -> None:
    assert float(info_nce(torch.zeros(7, 3), torch.randn(7, 3))) == pytest.approx(math.log(7))
    assert float(info_nce(50 * torch.eye(5), torch.eye(5))) == pytest.approx(0.0, abs=1e-6)


def objective_workflow(**settings: Any) -> DreamerWorkflow:
    return tiny_workflow(IMAGE, world_model=settings)


@pytest.mark.parametrize("objective", ["barlow", "infonce"])
def test_tokens_teach_the_encoder_through_the_posterior_alone(objective: str) -> None:
    workflow = objective_workflow(objective=Objective(objective))
    batch = make_batch(workflow)
    losses, metrics, _ = workflow.losses(batch, workflow.noise["update"], controller=False)
    assert losses[objective].shape == ()
    assert taught(workflow, losses[objective]).keys() == SEEN | {"prediction"}
    assert taught(workflow, losses["decoder/image"]).keys() == {"image decoder"}
    # Only one of three windows is decoded.
    assert losses["decoder/image"].shape[0] == 1
    assert ("dead_tokens" in metrics) == (objective == "barlow")
    tokens, observed = workflow.world_model.observe(batch, workflow.noise["update"])
    tokens.retain_grad()
    assert workflow.world_model.prediction is not None
    workflow.world_model.prediction.loss(observed.posterior.detach().feature, tokens)[0].backward()
    assert tokens.grad is None


def test_fewer_dims_are_random_directions_of_the_tokens() -> None:
    prediction = objective_workflow(
        objective=Objective.barlow, barlow=BarlowConfig(dims=4)
    ).world_model.prediction
    assert prediction is not None
    projection = prediction.projection
    assert projection is not None
    torch.testing.assert_close(projection @ projection.t(), torch.eye(4), atol=1e-5, rtol=0)
    assert prediction.predictor.weight.shape[0] == 4


@pytest.mark.parametrize("objective", ["none", "barlow"])
def test_without_a_decoder_there_are_no_pictures_and_an_update_changes_all_that_is_left(
    objective: str,
) -> None:
    workflow = objective_workflow(objective=Objective(objective), decoder=DecoderUse.off, harmony=True)
    before = {name: p.detach().clone() for name, p in parameters(workflow).items()}
    assert not any(name.startswith("world_model.decoder") for name in before)
    assert workflow.report(make_batch(workflow, time=7)) == {}
    updated = workflow.update(make_batch(workflow))
    assert bool(updated.finite) and "loss/decoder/image" not in updated.metrics
    still = {name for name, p in parameters(workflow).items() if torch.equal(p, before[name])}
    assert still - {name for name in before if "slow_critic" in name} == {
        "world_model.harmony.log_sigma.decoder"
    }


def test_reconstruction_needs_a_decoder_that_teaches() -> None:
    with pytest.raises(UserError, match=r"world_model.decoder=off .* Set the objective to barlow"):
        WorldModelConfig(decoder=DecoderUse.off)


def test_harmony_needs_a_ratio_of_the_kl_scales() -> None:
    with pytest.raises(UserError, match=r"both are 0. Set world_model.kl.dynamics_scale"):
        WorldModelConfig(harmony=True, kl=KLConfig(dynamics_scale=0.0, representation_scale=0.0))


def test_harmony_is_loss_over_sigma_plus_the_log_of_one_more() -> None:
    harmony = Harmony()
    means = {name: torch.tensor(value) for name, value in (("decoder/a", 3.0), ("decoder/b", 5.0))}
    means |= {"reward": torch.tensor(0.5), "continue": torch.tensor(0.2)}
    harmony.log_sigma["decoder"].data.fill_(math.log(4.0))
    terms = {name: term.detach() for name, term in harmony(means).items()}
    assert terms.keys() == {"continue", "decoder", "reward"}
    assert float(terms["decoder"]) == pytest.approx(8 / 4 + math.log(5))
    assert float(terms["reward"]) == pytest.approx(0.5 + math.log(2))
    assert float(terms["continue"]) == pytest.approx(0.2)


def test_harmony_s_weights_go_to_their_optimum_and_only_the_ratio_of_the_kl_scales_counts() -> None:
    workflow = objective_workflow(harmony=True)
    learned = workflow.world_model.harmony
    assert learned is not None
    for s in learned.log_sigma.values():
        s.data.zero_()
    losses, metrics, _ = workflow.losses(make_batch(workflow), workflow.noise["update"])
    assert {f"harmony/{group}" for group in BALANCED} <= metrics.keys()
    means = {name: loss.mean().detach() for name, loss in losses.items()}
    terms = workflow.world_model.weighted(means)
    both = (means["dynamics"] + 0.1 * means["representation"]) / 1.1
    torch.testing.assert_close(terms["kl"].detach(), both + math.log(2))
    torch.testing.assert_close(terms["decoder"].detach(), means["decoder/image"] + math.log(2))
    # The derivative of L exp(-s) + log(1 + exp(s)) is 0 if L = sigma^2 / (1 + sigma). With L = 9/4, sigma is
    # 3.
    [slope] = torch.autograd.grad(terms["reward"], [learned.log_sigma["reward"]])
    assert float(slope) == pytest.approx(-float(means["reward"]) + 0.5, rel=1e-5)
    learned.log_sigma["reward"].data.fill_(math.log(3.0))
    term = learned({"reward": torch.tensor(9 / 4)})["reward"]
    [slope] = torch.autograd.grad(term, [learned.log_sigma["reward"]])
    assert float(slope) == pytest.approx(0.0, abs=1e-6)
