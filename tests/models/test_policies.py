"""Policies and the heads that give them."""

import math

import pytest
import torch

from reverie.models import Actor, CategoricalPolicy, ContinueHead, TwoHotHead
from reverie.models.distributions import bounded_normal, unimix_log_probs
from reverie.utils.timestep import ActionSpec

from .tiny import MODE, TINY, perturb, seeded

FEATURE = 47


def test_a_bounded_normal_keeps_mean_and_spread_in_their_bounds() -> None:
    raw = torch.tensor([-1e3, -1.0, 0.0, 1.0, 1e3])
    policy = bounded_normal(raw, raw)
    torch.testing.assert_close(policy.mean, torch.tensor([-1.0, -0.7615942, 0.0, 0.7615942, 1.0]))
    torch.testing.assert_close(policy.std, torch.tensor([0.1, 0.7579527, 0.8927173, 0.9573167, 1.0]))


def test_a_bounded_normal_scores_raw_actions_summed_over_dimensions() -> None:
    policy = bounded_normal(torch.randn(9, 3), torch.randn(9, 3))
    action = policy.sample(seeded(0).normal(9, 3)) * 3  # beyond [-1, 1] too: nothing is squashed or clipped
    torch_form = torch.distributions.Independent(torch.distributions.Normal(policy.mean, policy.std), 1)
    by_hand = -(((action - policy.mean) / policy.std) ** 2) / 2 - policy.std.log() - math.log(2 * math.pi) / 2
    torch.testing.assert_close(policy.log_prob(action), by_hand.sum(-1))
    torch.testing.assert_close(policy.log_prob(action), torch_form.log_prob(action))
    torch.testing.assert_close(policy.entropy(), torch_form.entropy())


def test_normal_samples_have_the_mean_and_spread_of_the_policy_and_no_gradient() -> None:
    mean = torch.full((40_000, 1), 0.4, requires_grad=True)
    policy = bounded_normal(mean, torch.zeros(40_000, 1))
    sample = policy.sample(seeded(0).normal(40_000, 1))
    assert not sample.requires_grad
    assert float(sample.mean()) == pytest.approx(math.tanh(0.4), abs=0.02)
    assert float(sample.std()) == pytest.approx(0.8927173, abs=0.02)
    assert torch.equal(policy.sample(MODE.normal(40_000, 1)), policy.mean.detach())


def test_a_categorical_policy_scores_the_action_taken() -> None:
    log_probs = torch.tensor([0.7, 0.2, 0.1]).log()
    policy = CategoricalPolicy(log_probs.expand(3, 3))
    torch.testing.assert_close(policy.log_prob(torch.eye(3)), log_probs)
    entropy = -(0.7 * math.log(0.7) + 0.2 * math.log(0.2) + 0.1 * math.log(0.1))
    torch.testing.assert_close(policy.entropy(), torch.full((3,), entropy))
    assert torch.equal(policy.sample(MODE.exponential(3, 3)), torch.eye(3)[[0, 0, 0]])


def test_unimix_bounds_the_log_probability_of_every_action() -> None:
    actor = Actor(FEATURE, ActionSpec(6, True), 0.01, TINY)
    perturb(actor, 100.0)
    with torch.no_grad():
        policy = actor(torch.randn(200, FEATURE))
    assert isinstance(policy, CategoricalPolicy)
    assert float(policy.log_probs.min()) == pytest.approx(math.log(0.01 / 6), rel=1e-3)
    torch.testing.assert_close(policy.log_probs.exp().sum(-1), torch.ones(200))


def test_the_first_policy_is_nearly_uniform() -> None:
    policy = Actor(FEATURE, ActionSpec(6, True), 0.01, TINY)(torch.randn(200, FEATURE))
    assert float(policy.entropy().detach().min()) == pytest.approx(math.log(6), abs=1e-3)


def test_the_first_continuous_policy_is_centred_and_wide() -> None:
    policy = Actor(FEATURE, ActionSpec(2, False), 0.01, TINY)(torch.randn(200, FEATURE))
    torch.testing.assert_close(policy.sample(torch.zeros(200, 2)), torch.zeros(200, 2), atol=0.1, rtol=0)
    torch.testing.assert_close(
        policy.sample(torch.ones(200, 2)), torch.full((200, 2), 0.89), atol=0.15, rtol=0
    )


def test_reward_and_value_are_exactly_zero_before_training() -> None:
    head = TwoHotHead(FEATURE, 3, TINY)
    assert int(head.out.weight.count_nonzero()) == 0 and int(head.out.bias.count_nonzero()) == 0
    logits = head(torch.randn(50, FEATURE) * 10)
    assert torch.equal(head.mean(logits), torch.zeros(50))
    torch.testing.assert_close(head.loss(logits, torch.randn(50)), torch.full((50,), math.log(255)))


def test_the_continue_head_is_trained_towards_the_discount_and_towards_zero_at_a_terminal() -> None:
    logit = torch.tensor([0.0, 2.0, 0.0, 2.0])
    loss = ContinueHead.loss(logit, torch.tensor([0.0, 0.0, 1.0, 1.0]), 0.9)
    p = 1 / (1 + math.exp(-2))
    expected = [math.log(2), -0.9 * math.log(p) - 0.1 * math.log(1 - p), math.log(2), -math.log(1 - p)]
    torch.testing.assert_close(loss, torch.tensor(expected))


def test_the_continue_head_starts_undecided_but_not_at_zero_weights() -> None:
    head = ContinueHead(FEATURE, TINY)
    assert int(head.out.weight.count_nonzero()) == TINY.units
    assert head(torch.randn(4, 3, FEATURE)).shape == (4, 3)


def test_half_precision_logits_are_mixed_in_single_precision() -> None:
    logits = torch.tensor([[50.0, 0.0, 0.0]], dtype=torch.bfloat16)
    log_probs = unimix_log_probs(logits, 0.01)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs[0, 1], torch.tensor(math.log(0.01 / 3)))
