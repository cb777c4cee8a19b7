"""Policies and their heads."""

import itertools
import math

import pytest
import torch

from reverie.models import Actor, CategoricalPolicy, ContinueHead, MultiCategoricalPolicy, TwoHotHead
from reverie.models.distributions import bounded_normal, unimix_log_probs, unimix_log_probs_of_parts
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
    # Values beyond [-1, 1] are included, because actions are neither squashed nor clipped.
    action = policy.sample(seeded(0).normal(9, 3)) * 3
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


PARTS = (3, 2)
SHARES = torch.tensor([0.7, 0.2, 0.1, 0.6, 0.4])


def joint_actions() -> list[tuple[int, int]]:
    return list(itertools.product(range(3), range(2)))


def blocks(first: int, second: int) -> torch.Tensor:
    return torch.cat([torch.eye(3)[first], torch.eye(2)[second]])


def test_several_choices_at_once_are_scored_as_one_choice_of_their_product() -> None:
    policy = MultiCategoricalPolicy(SHARES.log(), PARTS)
    assert policy.log_prob(blocks(1, 0)).item() == pytest.approx(math.log(0.12), abs=1e-6)
    product = torch.tensor([SHARES[i] * SHARES[3 + j] for i, j in joint_actions()])
    scores = torch.stack([policy.log_prob(blocks(*each)) for each in joint_actions()])
    torch.testing.assert_close(scores, product.log())
    torch.testing.assert_close(policy.entropy(), CategoricalPolicy(product.log()).entropy())
    assert policy.entropy().item() == pytest.approx(0.8018 + 0.6730, abs=1e-4)


def test_several_choices_at_once_are_drawn_independently() -> None:
    count = 60_000
    policy = MultiCategoricalPolicy(SHARES.log().expand(count, 5), PARTS)
    sample = policy.sample(seeded(0).exponential(count, 5))
    assert torch.equal(sample[:, :3].sum(-1), torch.ones(count)) and not sample.requires_grad
    frequency = torch.stack([(sample == blocks(*each)).all(-1).float().mean() for each in joint_actions()])
    expected = torch.tensor([0.42, 0.28, 0.12, 0.08, 0.06, 0.04])
    torch.testing.assert_close(frequency, expected, atol=0.01, rtol=0)
    assert torch.equal(policy.sample(MODE.exponential(count, 5))[0], blocks(0, 0))


def test_each_of_several_choices_has_a_uniform_share_of_its_own() -> None:
    log_probs = unimix_log_probs_of_parts(torch.tensor([60.0, 0.0, 0.0, 0.0, 60.0]), PARTS, 0.06)
    torch.testing.assert_close(log_probs.exp(), torch.tensor([0.96, 0.02, 0.02, 0.03, 0.97]))


def test_the_gradient_of_several_choices_is_that_of_one_choice_of_their_product() -> None:
    """REINFORCE with an entropy bonus, compared with autograd over the table of all six joint actions."""
    actor = Actor(FEATURE, ActionSpec(5, True, PARTS), 0.01, TINY)
    perturb(actor, 1.0)
    feature, gain = torch.randn(6, FEATURE), torch.randn(6)
    action = torch.stack([blocks(*each) for each in joint_actions()])
    policy = actor(feature)
    loss = -(policy.log_prob(action) * gain + 0.3 * policy.entropy()).sum()
    found = torch.autograd.grad(loss, list(actor.parameters()))

    logits = actor.out(actor.mlp(feature))
    first, second = (0.99 * part.softmax(-1) + 0.01 / part.shape[1] for part in logits.split(PARTS, -1))
    table = (first[:, :, None] * second[:, None, :]).flatten(1)
    entropy = -(table * table.log()).sum(-1)
    slow = -(table.diagonal().log() * gain + 0.3 * entropy).sum()
    for fast, expected in zip(found, torch.autograd.grad(slow, list(actor.parameters())), strict=True):
        torch.testing.assert_close(fast, expected, rtol=1e-4, atol=1e-5)


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
