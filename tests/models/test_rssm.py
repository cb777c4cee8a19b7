"""The RSSM: its step in plain form, its resets, and properties of its scan."""

import pytest
import torch
from torch import Tensor

from reverie.models import RSSM, LatentState, RSSMOutput
from reverie.models.rssm import BlockGRU

from .plain import BATCH, dense, plain_step, random_state, silu_norm
from .tiny import ACTION_SIZE, TINY, TOKEN_SIZE, perturb, seeded, tiny_rssm

TIME = 64


def inputs(time: int = TIME) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, previous actions and first flags of a window without episode boundaries."""
    tokens = torch.randn(BATCH, time, TOKEN_SIZE)
    action = torch.randn(BATCH, time, ACTION_SIZE) * 2
    return tokens, action, torch.zeros(BATCH, time, dtype=torch.bool)


def latent_noise(time: int = TIME) -> Tensor:
    return seeded(5).exponential(BATCH, time, TINY.stoch, TINY.classes)


def mode_noise(first: Tensor) -> Tensor:
    """Return the noise with which the most probable class wins."""
    return torch.ones(*first.shape, TINY.stoch, TINY.classes)


def assert_same(left: RSSMOutput, right: RSSMOutput) -> None:
    torch.testing.assert_close(left.posterior.deter, right.posterior.deter)
    torch.testing.assert_close(left.posterior.stoch, right.posterior.stoch)
    torch.testing.assert_close(left.posterior_logits, right.posterior_logits)
    torch.testing.assert_close(left.prior_logits, right.prior_logits)


def cut(observed: RSSMOutput, part: slice) -> RSSMOutput:
    time = (slice(None), part)
    return RSSMOutput(
        observed.posterior.select(time), observed.posterior_logits[time], observed.prior_logits[time]
    )


def test_a_step_equals_every_block_reading_its_own_concatenation() -> None:
    core = BlockGRU(ACTION_SIZE, TINY)
    perturb(core)
    state, action = random_state(), torch.randn(BATCH, ACTION_SIZE) * 3
    recurrent, action_weight = core.split_weights()
    added, weights = core.added(core.action_input(action, action_weight)), core.weights(recurrent)
    fast, _ = core(
        state.deter, state.deter @ core.deter_weight.t(), state.flat_stoch, added, core.vectors(), weights
    )
    plain = plain_step(core, state.deter, state.flat_stoch, action)
    torch.testing.assert_close(fast.flatten(1).double(), plain, atol=2e-6, rtol=1e-5)
    assert float((plain.detach() - state.deter).abs().max()) > 0.1


def test_a_step_has_the_gradients_of_the_plain_form() -> None:
    core = BlockGRU(ACTION_SIZE, TINY)
    perturb(core)
    state, action = random_state(), torch.randn(BATCH, ACTION_SIZE) * 3
    direction, names = torch.randn(BATCH, TINY.deter), [name for name, _ in core.named_parameters()]
    recurrent, action_weight = core.split_weights()
    added, weights = core.added(core.action_input(action, action_weight)), core.weights(recurrent)
    fast, _ = core(
        state.deter, state.deter @ core.deter_weight.t(), state.flat_stoch, added, core.vectors(), weights
    )
    ours = torch.autograd.grad((fast.flatten(1) * direction).sum(), list(core.parameters()))
    plain = plain_step(core, state.deter, state.flat_stoch, action)
    theirs = torch.autograd.grad((plain * direction).sum(), list(core.parameters()))
    for name, a, b in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_a_scan_is_the_plain_step_and_the_posterior_of_state_and_token_together() -> None:
    rssm = tiny_rssm()
    tokens, action, first = inputs(time=5)
    start, noise = random_state(), latent_noise(5)
    observed = rssm.observe(tokens, action, first, noise, state=start)
    deter, stoch = start.deter, start.flat_stoch
    for t in range(5):
        deter = plain_step(rssm.core, deter, stoch, action[:, t])
        joined = torch.cat([deter, tokens[:, t].double()], -1)
        logits = dense(silu_norm(dense(joined, rssm.posterior_in), rssm.posterior_norm), rssm.posterior_out)
        logits = logits.unflatten(-1, (TINY.stoch, TINY.classes))
        torch.testing.assert_close(observed.posterior_logits[:, t].double(), logits, atol=1e-5, rtol=1e-4)
        probs = 0.99 * logits.softmax(-1) + 0.01 / TINY.classes
        stoch = torch.nn.functional.one_hot((probs / noise[:, t]).argmax(-1), TINY.classes).flatten(1)
        torch.testing.assert_close(observed.posterior.flat_stoch[:, t], stoch.float(), atol=1e-6, rtol=0)
    torch.testing.assert_close(observed.prior_logits, rssm.prior_logits(observed.posterior.deter))


def test_two_scans_of_32_steps_equal_one_of_64() -> None:
    rssm = tiny_rssm()
    tokens, action, first = inputs()
    first[1, 20] = first[2, 40] = True
    noise, start = latent_noise(), random_state()
    whole = rssm.observe(tokens, action, first, noise, state=start)
    halves, state = [], start
    for part in (slice(0, 32), slice(32, 64)):
        half = rssm.observe(tokens[:, part], action[:, part], first[:, part], noise[:, part], state=state)
        state = half.posterior.select((slice(None), -1))
        halves.append(half)
    assert_same(halves[0], cut(whole, slice(0, 32)))
    assert_same(halves[1], cut(whole, slice(32, 64)))


@pytest.mark.parametrize("border", [0, 1, 7])
def test_after_a_first_step_nothing_before_it_matters(border: int) -> None:
    rssm = tiny_rssm()
    tokens, action, first = inputs(12)
    first[:, border] = True
    noise, other = latent_noise(12), inputs(12)
    one = rssm.observe(tokens, action, first, noise, state=random_state())
    other_tokens, other_action = other[0].clone(), other[1].clone()
    other_tokens[:, border:], other_action[:, border + 1 :] = tokens[:, border:], action[:, border + 1 :]
    two = rssm.observe(other_tokens, other_action, first, noise, state=random_state())
    assert_same(cut(one, slice(border, None)), cut(two, slice(border, None)))
    fresh = rssm.observe(
        tokens[:, border:],
        action[:, border:],
        first[:, border:],
        noise[:, border:],
        state=rssm.initial(BATCH),
    )
    assert_same(cut(one, slice(border, None)), fresh)
    if border:
        assert not torch.allclose(one.posterior.deter[:, border - 1], two.posterior.deter[:, border - 1])


def test_without_a_first_step_history_and_previous_action_do_matter() -> None:
    rssm = tiny_rssm()
    tokens, action, first = inputs(2)
    noise, start = latent_noise(2), random_state()

    def deter(action: Tensor, state: LatentState) -> Tensor:
        return rssm.observe(tokens, action, first, noise, state=state).posterior.deter[:, 0].detach()

    base, moved, older = deter(action, start), deter(-action, start), deter(action, random_state())
    assert float((base - moved).abs().max()) > 1e-3 and float((base - older).abs().max()) > 1e-3


def test_actions_beyond_one_are_scaled_back_and_smaller_ones_are_not() -> None:
    rssm = tiny_rssm()
    tokens, _, first = inputs(1)

    def deter(size: float) -> Tensor:
        action = torch.full((BATCH, 1, ACTION_SIZE), size)
        return rssm.observe(
            tokens, action, first, mode_noise(first), state=rssm.initial(BATCH)
        ).posterior.deter.detach()

    torch.testing.assert_close(deter(5.0), deter(1.0))
    assert float((deter(0.5) - deter(1.0)).abs().max()) > 1e-3


def test_the_online_state_goes_on_like_one_longer_scan() -> None:
    rssm = tiny_rssm()
    tokens, action, first = inputs(10)
    first[:, 0] = first[1, 6] = True
    noise = latent_noise(10)
    whole = rssm.observe(tokens, action, first, noise, state=rssm.initial(BATCH))
    for t in range(10):
        now = slice(t, t + 1)
        step = rssm.observe(
            tokens[:, now], action[:, now], first[:, now], noise[:, now], detach_posteriors=True
        )
        assert_same(step, cut(whole, now))


def test_forgetting_the_online_state_starts_from_zeros_again() -> None:
    rssm = tiny_rssm()
    tokens, action, first = inputs(1)
    fresh = rssm.observe(tokens, action, first, mode_noise(first))
    later = rssm.observe(tokens, action, first, mode_noise(first))
    assert not torch.allclose(fresh.posterior.deter, later.posterior.deter)
    rssm.set_online_state(None)
    assert_same(rssm.observe(tokens, action, first, mode_noise(first)), fresh)


def test_a_window_with_its_own_state_leaves_the_online_state_alone() -> None:
    rssm = tiny_rssm()
    tokens, action, first = inputs(4)
    rssm.observe(tokens, action, first, mode_noise(first), state=random_state())
    assert rssm._state is None
    rssm.observe(tokens, action, first, mode_noise(first), detach_posteriors=True)
    cached = rssm._state
    assert cached is not None
    kept = cached.deter.clone()
    for detach in (False, True):
        rssm.observe(tokens, action, first, mode_noise(first), state=random_state(), detach_posteriors=detach)
    assert rssm._state is cached and torch.equal(cached.deter, kept)


def graphs(rssm: RSSM, observed: RSSMOutput) -> list[bool]:
    assert rssm._state is not None
    tensors = [
        observed.posterior.deter,
        observed.posterior.stoch,
        observed.posterior_logits,
        observed.prior_logits,
    ]
    return [x.grad_fn is not None for x in (*tensors, rssm._state.deter, rssm._state.stoch)]


def test_detached_posteriors_leave_no_graph_in_what_is_returned_or_cached() -> None:
    rssm = tiny_rssm()
    tokens, action, first = inputs(3)
    tokens.requires_grad_()
    assert torch.is_grad_enabled()
    for _ in range(2):
        observed = rssm.observe(tokens, action, first, mode_noise(first), detach_posteriors=True)
        assert graphs(rssm, observed) == [False] * 6
    rssm.set_online_state(None)
    assert graphs(rssm, rssm.observe(tokens, action, first, mode_noise(first))) == [True] * 6


def test_a_scan_without_priors_differs_in_nothing_else() -> None:
    rssm = tiny_rssm()
    window, noise, start = inputs(5), latent_noise(5), random_state()
    whole, short = (
        rssm.observe(*window, noise, state=start, compute_prior=compute_prior)
        for compute_prior in (True, False)
    )
    assert short.prior_logits.shape == (BATCH, 0, TINY.stoch, TINY.classes)
    assert torch.equal(short.posterior.feature, whole.posterior.feature)
    assert torch.equal(short.posterior_logits, whole.posterior_logits)


def test_detaching_changes_no_number() -> None:
    rssm = tiny_rssm()
    window, noise, start = inputs(5), latent_noise(5), random_state()
    attached, detached = (
        rssm.observe(*window, noise, state=start, detach_posteriors=detach) for detach in (False, True)
    )
    assert_same(attached, detached)


def test_the_gradient_of_the_last_state_reaches_the_first_token_through_deter_and_sample() -> None:
    rssm = tiny_rssm()
    tokens, action, first = inputs(4)
    tokens.requires_grad_()
    observed = rssm.observe(tokens, action, first, latent_noise(4), state=random_state())
    (gradient,) = torch.autograd.grad(observed.posterior.deter[:, -1].sum(), tokens)
    sizes = gradient.abs().sum((0, 2))
    assert bool((sizes[:3] > 0).all()) and float(sizes[3]) == 0.0
    # A new episode also stops the gradient.
    first[:, 2] = True
    observed = rssm.observe(tokens, action, first, latent_noise(4), state=random_state())
    (gradient,) = torch.autograd.grad(observed.posterior.deter[:, -1].sum(), tokens)
    assert float(gradient[:, :2].abs().sum()) == 0.0 and float(gradient[:, 2].abs().sum()) > 0.0


def test_unimix_lets_a_latent_take_a_class_that_the_logits_exclude() -> None:
    rssm = tiny_rssm()
    certain = torch.zeros(TINY.stoch, TINY.classes)
    certain[:, 0] = 1e3
    for layer in (rssm.posterior_out, rssm.prior[1]):
        layer.bias.data.copy_(certain.flatten())  # pyright: ignore[reportCallIssue, reportArgumentType]
    # Class 1 has probability 0.01 / 3. Only in the first latent does it arrive 1000 times earlier.
    noise = torch.ones(BATCH, 1, TINY.stoch, TINY.classes)
    noise[:, :, 0, 1] = 1e-3
    expected = torch.tensor([1, 0, 0, 0, 0]).expand(BATCH, TINY.stoch)
    posterior = rssm.observe(*inputs(1), noise, state=random_state()).posterior
    assert torch.equal(posterior.stoch[:, 0].argmax(-1), expected)
    still = torch.zeros(BATCH, ACTION_SIZE)
    states, _ = rssm.imagine(random_state(), lambda *_: still, noise.transpose(0, 1))
    assert torch.equal(states[1].stoch.argmax(-1), expected)
