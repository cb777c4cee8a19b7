"""Values of the losses: at the start of training, below the free nats, at terminals, without context."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reverie.buffers import SequenceBatch
from reverie.models import Actor, LatentState, RSSMOutput
from reverie.models.decoder import squared_error
from reverie.workflows.world_models import DreamerWorkflow
from reverie.workflows.world_models.controller import ImaginedTrajectory, imagine

from ..models.tiny import MODE, TINY
from .tiny import ACTIONS, HORIZON, IMAGE, make_batch, tiny_workflow

# Only objectives other than reconstruction read tokens.
TOKENS = torch.zeros(0)


def losses_of(workflow: DreamerWorkflow, batch: SequenceBatch) -> dict[str, Tensor]:
    """Return the losses as for the first batch, with a new return normalizer, because calls change it."""
    for average in (workflow.controller.normalizer.low, workflow.controller.normalizer.high):
        average.zero_()
    losses, _, _ = workflow.losses(batch, MODE)
    return losses


def observed_with(posterior_logits: Tensor, prior_logits: Tensor) -> RSSMOutput:
    lead = posterior_logits.shape[:2]
    state = LatentState(torch.zeros(*lead, TINY.deter), torch.zeros(*lead, TINY.stoch, TINY.classes))
    return RSSMOutput(state, posterior_logits, prior_logits)


def test_losses_before_training_have_the_values_of_the_facts_sheet() -> None:
    workflow = tiny_workflow(IMAGE, free_nats=1.0, is_perturbed=False)
    losses, metrics, _ = workflow.losses(make_batch(workflow, has_borders=False), MODE)
    ln_bins = math.log(255)
    torch.testing.assert_close(losses["reward"], torch.full((3, 5), ln_bins))
    torch.testing.assert_close(losses["replay_value"], torch.full((3, 4), 2 * ln_bins))
    assert float(losses["continue"].detach().mean()) == pytest.approx(math.log(2), abs=0.5)
    assert float(metrics["policy_entropy"]) == pytest.approx(math.log(ACTIONS), abs=1e-3)
    assert float(metrics["value_mean"]) == 0.0 and float(metrics["imagined_reward_mean"]) == 0.0
    assert float(metrics["return_scale"]) == 1.0
    assert losses["policy"].shape == losses["value"].shape == (15, HORIZON)


def test_without_the_continue_loss_every_episode_continues() -> None:
    world_model = tiny_workflow(switched_off=["continue"]).world_model
    _, discount = world_model.predict(torch.randn(4, world_model.feature_size))
    torch.testing.assert_close(discount, torch.full((4,), world_model.discount), rtol=0, atol=0)


def test_kl_below_the_free_nats_costs_them_and_teaches_nothing() -> None:
    workflow = tiny_workflow(free_nats=1.0, switched_off=["decoder", "reward", "continue"])
    posterior = torch.zeros(1, 2, TINY.stoch, TINY.classes)
    posterior[0, 0, :, 0], posterior[0, 1, :, 0] = 0.5, 3.0
    posterior.requires_grad_()
    prior = torch.zeros_like(posterior).requires_grad_()
    steps = make_batch(workflow, batch=1, time=2).trained()
    losses, _ = workflow.world_model.losses(steps, TOKENS, observed_with(posterior, prior))
    assert losses.keys() == {"dynamics", "representation"}
    for name, learner, other in (("dynamics", prior, posterior), ("representation", posterior, prior)):
        assert float(losses[name][0, 0].detach()) == 1.0 and float(losses[name][0, 1].detach()) > 2.0
        mine, theirs = torch.autograd.grad(losses[name].sum(), [learner, other], allow_unused=True)
        assert theirs is None
        assert float(mine[0, 0].abs().sum()) == 0.0 and float(mine[0, 1].abs().sum()) > 0.1


def test_kl_is_summed_over_latents_before_it_is_clipped() -> None:
    workflow = tiny_workflow(free_nats=1.0, switched_off=["decoder", "reward", "continue"])
    posterior = torch.zeros(1, 1, TINY.stoch, TINY.classes)
    posterior[..., 0] = 1.5
    prior = torch.zeros_like(posterior)
    p = 0.99 * posterior.double().softmax(-1) + 0.01 / TINY.classes
    each = float((p * (p.log() + math.log(TINY.classes))).sum(-1)[0, 0, 0])
    assert each < 1.0 < TINY.stoch * each
    steps = make_batch(workflow, batch=1, time=1).trained()
    losses, _ = workflow.world_model.losses(steps, TOKENS, observed_with(posterior, prior))
    assert float(losses["dynamics"]) == pytest.approx(TINY.stoch * each, rel=1e-5)


def test_the_total_is_the_scaled_sum_of_means() -> None:
    workflow = tiny_workflow()
    scales = {"representation": 0.1, "replay_value": 0.3}
    names = [
        "dynamics",
        "representation",
        "decoder/vector",
        "reward",
        "continue",
        "policy",
        "value",
        "replay_value",
    ]
    losses = {name: torch.tensor([[1.0, 3.0]]) * 10**index for index, name in enumerate(names)}
    expected = sum(scales.get(name, 1.0) * 2.0 * 10**index for index, name in enumerate(names))
    assert float(workflow.total(losses)) == pytest.approx(expected, rel=1e-6)


def test_image_loss_is_a_sum_of_squares_against_values_in_zero_to_one() -> None:
    truth = torch.randint(256, (2, 64, 64, 3), dtype=torch.uint8)
    prediction = torch.rand(2, 64, 64, 3)
    expected = (prediction.double() - truth.double() / 255).square().sum((1, 2, 3))
    torch.testing.assert_close(squared_error(prediction, truth).double(), expected, rtol=1e-5, atol=0)
    assert float(squared_error(truth / 255, truth).max()) < 1e-9


def imagined_with(actor: Actor, discount: Tensor) -> ImaginedTrajectory:
    count, states = discount.shape
    feature = torch.randn(count, states, TINY.deter + TINY.stoch * TINY.classes)
    action = torch.eye(ACTIONS)[torch.randint(ACTIONS, (count, states - 1))]
    reward = torch.randn(states, count)
    feature, action = feature.transpose(0, 1), action.transpose(0, 1)
    return ImaginedTrajectory(feature, action, actor(feature[:-1]), reward, discount.t())


def test_nothing_is_learned_behind_a_predicted_end_and_nothing_from_a_start_that_is_one() -> None:
    workflow = tiny_workflow()
    batch = make_batch(workflow, batch=1, time=3)
    steps, (_, observed) = batch.trained(), workflow.world_model.observe(batch, MODE)
    discount = torch.full((3, HORIZON + 1), 0.997)
    discount[0, 0] = discount[1, 1] = 0.0
    losses, _ = workflow.controller.losses(
        imagined_with(workflow.controller.actor, discount), observed.posterior, steps, 3e-4
    )
    for name in ("policy", "value"):
        is_learned = losses[name].detach().abs() > 1e-4
        assert is_learned.tolist() == [[False] * 3, [True, False, False], [True] * 3], name


def test_starts_that_the_model_believes_terminal_have_no_weight() -> None:
    workflow = tiny_workflow()
    batch = make_batch(workflow)
    before = losses_of(workflow, batch)
    workflow.world_model.continuation.out.weight.data.zero_()
    workflow.world_model.continuation.out.bias.data.fill_(-20.0)
    after = losses_of(workflow, batch)
    for name in ("policy", "value"):
        assert float(before[name].detach().abs().mean()) > 1e-3
        assert float(after[name].detach().abs().max()) < 1e-6


def test_the_weight_of_a_step_is_the_product_of_continuations_up_to_it() -> None:
    workflow = tiny_workflow()
    torch.nn.init.zeros_(workflow.controller.critic.out.weight)
    torch.nn.init.zeros_(workflow.controller.critic.out.bias)
    batch = make_batch(workflow, batch=1, time=2)
    steps, (_, observed) = batch.trained(), workflow.world_model.observe(batch, MODE)
    discount = torch.tensor([[0.9, 0.5, 0.8, 0.1], [0.4, 1.0, 0.3, 1.0]])
    losses, _ = workflow.controller.losses(
        imagined_with(workflow.controller.actor, discount), observed.posterior, steps, 3e-4
    )
    weight = torch.tensor([[0.9, 0.45, 0.36], [0.4, 0.4, 0.12]])
    torch.testing.assert_close(losses["value"].detach(), weight * 2 * math.log(255))


def test_the_entropy_s_weight_falls_as_one_over_the_updates_but_not_below_the_least() -> None:
    workflow = tiny_workflow()
    batch, config = make_batch(workflow), workflow.config.controller
    config.entropy_scale, config.entropy_decay_from, config.least_entropy_scale = 8e-3, 4, 3e-3
    found = []
    for updates in (0, 4, 8, 100):
        workflow.optimizers["actor"].updates.fill_(updates)
        found.append(losses_of(workflow, batch)["policy"])
    config.entropy_decay_from = 0
    for falling, scale in zip(found, (8e-3, 8e-3, 4e-3, 3e-3), strict=True):
        config.entropy_scale = scale
        torch.testing.assert_close(falling, losses_of(workflow, batch)["policy"], rtol=1e-6, atol=1e-8)
    assert not torch.allclose(found[1], found[2], rtol=1e-4)


def test_replayed_values_skip_final_records_and_follow_real_rewards() -> None:
    workflow = tiny_workflow()
    controller = workflow.controller
    batch = make_batch(workflow)
    steps, (_, observed) = batch.trained(), workflow.world_model.observe(batch, MODE)
    # The imagined return of a start is then the next imagined reward.
    discount = torch.zeros(15, HORIZON + 1)
    imagined = imagined_with(controller.actor, discount)
    boot = imagined.reward[1].view(3, 5)
    losses, _ = controller.losses(imagined, observed.posterior, steps, 3e-4)
    feature = observed.posterior.feature.detach()
    logits = controller.critic(feature).detach()
    slow = controller.slow_critic.mean(controller.slow_critic(feature))
    for row in range(3):
        target = boot[row, 4]
        for t in reversed(range(4)):
            lambda_ = 0.0 if steps.is_last[row, t + 1] else 0.95
            gamma = 0.0 if steps.is_terminal[row, t + 1] else 1 - 1 / 333
            target = steps.reward[row, t + 1] + gamma * ((1 - lambda_) * boot[row, t + 1] + lambda_ * target)
            here = logits[row, t]
            loss = controller.critic.loss(here, target) + controller.critic.loss(here, slow[row, t])
            expected = 0.0 if steps.is_last[row, t] else float(loss)
            assert float(losses["replay_value"][row, t].detach()) == pytest.approx(expected, rel=1e-4), (
                row,
                t,
            )
    assert bool(steps.is_last[:, :-1].any())


def test_a_window_without_stored_latents_is_one_that_starts_an_episode() -> None:
    workflow = tiny_workflow()
    batch = make_batch(workflow)
    is_first = batch.is_first.clone()
    is_first[:, 1] = True
    with_context = losses_of(workflow, replace(batch, is_first=is_first))
    without = losses_of(workflow, replace(batch, context=None))
    for name, loss in without.items():
        torch.testing.assert_close(loss, with_context[name], msg=lambda m, n=name: f"{n}: {m}")
    carried = losses_of(workflow, batch)
    assert not torch.allclose(without["decoder/vector"], carried["decoder/vector"])
    assert not bool(batch.is_first[:, 1].any())


def test_column_zero_gives_its_action_and_nothing_else() -> None:
    workflow = tiny_workflow()
    batch = make_batch(workflow)
    reference = losses_of(workflow, batch)
    reward, action, flags = batch.reward.clone(), batch.action.clone(), torch.ones_like(batch.is_first)
    vector = batch.observation["vector"].clone()
    reward[:, 0], vector[:, 0], action[:, -1], flags[:, 1:] = 99.0, 99.0, 0.0, batch.is_first[:, 1:]
    same = replace(batch, reward=reward, observation={"vector": vector}, action=action, is_first=flags)
    for name, loss in losses_of(workflow, same).items():
        assert torch.equal(loss, reference[name]), name
    action = batch.action.clone()
    action[:, 0] = action[:, 0].roll(1, -1)
    other = losses_of(workflow, replace(batch, action=action))
    assert not torch.equal(other["decoder/vector"], reference["decoder/vector"])


@pytest.mark.parametrize("is_discrete", [True, False], ids=["discrete", "continuous"])
def test_the_policies_of_a_trajectory_are_those_of_its_features_and_teach_the_actor_the_same(
    is_discrete: bool,
) -> None:
    workflow = tiny_workflow(is_discrete=is_discrete)
    world_model, actor = workflow.world_model, workflow.controller.actor
    start = world_model.rssm.initial(4)
    imagined = imagine(world_model, actor, start, HORIZON, workflow.noise["update"])
    again = actor(imagined.feature[:-1])
    assert imagined.action.shape == (HORIZON, 4, ACTIONS) and not imagined.feature.requires_grad
    gradients = []
    for policy in (imagined.policy, again):
        score = (policy.log_prob(imagined.action) + policy.entropy()).sum()
        gradients.append(torch.autograd.grad(score, list(actor.parameters())))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_imagining_from_the_last_states_alone_gives_their_losses_of_before() -> None:
    workflow = tiny_workflow()
    # The batch has three windows of five steps.
    batch = make_batch(workflow)
    whole = losses_of(workflow, batch)
    workflow.config.controller.imagine_last = 5
    assert all(torch.equal(each, whole[name]) for name, each in losses_of(workflow, batch).items())
    workflow.config.controller.imagine_last = 2
    part = losses_of(workflow, batch)
    # A return belongs to only one start.
    of_windows = whole["value"].detach().unflatten(0, (3, 5))
    torch.testing.assert_close(part["value"].detach().unflatten(0, (3, 2)), of_windows[:, -2:])
    torch.testing.assert_close(part["replay_value"].detach(), whole["replay_value"].detach()[:, -1:])
