"""Categorical latents and two-hot numbers: literal values and properties."""

import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from reverie.models import LaProp, ModelConfig, Noise, OptimizerConfig, TwoHotHead
from reverie.models.distributions import (
    categorical_entropy,
    categorical_kl,
    sample_onehot,
    straight_through,
    symexp,
    symlog,
    unimix_log_probs,
    unimix_probs,
)
from reverie.utils.ranks import Ranks

from .tiny import MODE, TINY, seeded

HEAD = TwoHotHead(7, layers=1, config=TINY)
BINS = torch.cat([-HEAD.bins[1:].flip(0), HEAD.bins])
# This is symexp(20).
END = 4.85165194e8


def ascending(values: Tensor) -> Tensor:
    """Return numbers in the order of `BINS`, given in the order of logits."""
    return torch.cat([values[128:].flip(0), values[:128]])


def encode(value: float) -> Tensor:
    """Return the two-hot target of `value`, derived from the gradient of the loss.

    The gradient is softmax - target. All probability is on a bin far from the target, so elsewhere the
    gradient is -target.
    """
    far = 254 if value > 0 else 127
    logits = torch.zeros(255)
    logits[far] = 80.0
    logits.requires_grad_()
    HEAD.loss(logits, torch.tensor(value)).backward()
    assert logits.grad is not None
    target = -logits.grad
    target[far] = 0.0
    return target.clamp(min=0.0)


def test_symlog_and_symexp_have_their_literal_values() -> None:
    x = torch.tensor([-20.0, 0.0, 1.0, 1e4])
    torch.testing.assert_close(symlog(x), torch.tensor([-3.0445224, 0.0, 0.6931472, 9.2104404]))
    torch.testing.assert_close(
        symexp(torch.tensor([-1.0, 0.0, 2.0])), torch.tensor([-1.7182818, 0.0, 6.3890561])
    )


def test_bins_are_symmetric_about_exact_zero_with_the_literal_values_of_the_reference() -> None:
    assert BINS.shape == (255,) and BINS.dtype == torch.float32
    assert BINS[127] == 0.0 and torch.equal(BINS, -BINS.flip(0))
    assert float(BINS[-1]) == pytest.approx(END, rel=1e-6)
    near = torch.tensor([0.1706, 0.3702, 0.6039, 0.8775, 1.1977])
    torch.testing.assert_close(BINS[128:133], near, atol=5e-5, rtol=0)
    assert bool((BINS.diff() > 0).all())


@pytest.mark.parametrize("value", [0.0, 1e-3, -1e-3, 1.0, -1.0, 21.0, -21.0, 1e4, -1e4, 1e9, -1e9])
def test_a_number_survives_the_round_trip_through_its_two_hot_target(value: float) -> None:
    target = encode(value)
    assert float(target.sum()) == pytest.approx(1.0, abs=1e-6)
    (hot,) = ascending(target).nonzero(as_tuple=True)
    assert len(hot) <= 2 and int(hot[-1] - hot[0]) <= 1
    expected = math.copysign(min(abs(value), END), value)
    assert float(HEAD.mean(target.log())) == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_a_number_on_a_bin_puts_all_weight_on_it() -> None:
    for index in (1, 100, 127, 130, 253):
        target = ascending(encode(float(BINS[index])))
        assert target.argmax() == index and target[index] == 1.0


def test_weights_are_linear_in_the_raw_value_not_in_symlog() -> None:
    middle = float(BINS[200] + BINS[201]) / 2
    target = ascending(encode(middle))
    torch.testing.assert_close(target[200:202], torch.tensor([0.5, 0.5]), atol=1e-5, rtol=0)


def test_zero_logits_predict_exactly_zero() -> None:
    for shift in (0.0, 3.0, -1e4):
        assert float(HEAD.mean(torch.full((255,), shift))) == 0.0
    mirrored = torch.randn(127)
    assert float(HEAD.mean(torch.cat([torch.randn(1), mirrored, mirrored]))) == 0.0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("units", "size"), [(64, 7680), (64, 15360), (256, 4080)])
def test_weights_and_biases_of_mirrored_bins_stay_equal_while_their_bins_are_no_targets(
    units: int, size: int, device: str
) -> None:
    # With one product of all 255 columns, the bias gradients of the last 31 are summed in another order. With
    # 15,360 rows, predictions of positive numbers were then as low as -1.5.
    torch.manual_seed(0)
    head = TwoHotHead(96, layers=1, config=ModelConfig(units=units)).to(device)
    optimizer = LaProp([*head.parameters()], OptimizerConfig(learning_rate=3e-4, warmup_updates=0))
    far = slice(0, 60)  # Targets are below 8, and these bins are above 10,000.
    for _ in range(20):
        feature = torch.randn(size, 96, device=device)
        with torch.autocast(device, torch.bfloat16):
            logits = head(feature)
            head.loss(logits, feature[:, 0].abs()).mean().backward()
        assert -0.01 < float(head.mean(logits.detach()).min()) < 0.03
        for rows in (head.out.weight.grad, head.out.bias.grad):
            assert rows is not None and torch.equal(rows[far], rows.flip(0)[far])
        optimizer.step()
    assert bool(head.out.weight[far].abs().mean() > 1e-3)
    for rows in (head.out.weight, head.out.bias):
        assert torch.equal(rows[far], rows.flip(0)[far])


def test_in_bfloat16_a_head_forgets_that_weights_of_mirrored_bins_differ() -> None:
    # With logits rounded to bfloat16, the largest error below would be 500 to 1,600, and would not fall.
    torch.manual_seed(0)
    head = TwoHotHead(8, layers=1, config=ModelConfig(units=64))
    half = 1e-3 * torch.randn(128, 64)
    with torch.no_grad():
        head.out.weight[:128], head.out.weight[128:] = half, half[:127].flip(0)
        head.out.weight[128:] *= 1.0 + 1e-3 * torch.randn(127, 64)
    optimizer = LaProp([*head.parameters()], OptimizerConfig(learning_rate=3e-4, warmup_updates=0))
    errors = []
    for _ in range(1000):
        feature = torch.randn(64, 8)
        with torch.autocast("cpu", torch.bfloat16):
            logits = head(feature)
            head.loss(logits, feature[:, 0]).mean().backward()
        assert logits.dtype is torch.float32
        optimizer.step()
        errors.append(float((head.mean(logits.detach()) - feature[:, 0]).abs().max()))
    assert errors[0] > 10.0 and max(errors[-100:]) < 5.0


@pytest.mark.gpu
def test_compiled_zero_logits_predict_exactly_zero_too() -> None:
    # A separate process, because the shape checks of the tests cannot be compiled.
    program = (
        "import torch; from reverie.models import ModelConfig, TwoHotHead\n"
        "head = TwoHotHead(7, 1, ModelConfig()).cuda()\n"
        "mean = torch.compile(head.mean, fullgraph=True)\n"
        "assert mean(torch.zeros(64, 255).cuda()).eq(0.0).all()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_zero_logits_cost_ln_255_nats_whatever_the_value() -> None:
    loss = HEAD.loss(torch.zeros(4, 255), torch.tensor([0.0, -3.0, 1e6, 1e12]))
    torch.testing.assert_close(loss, torch.full((4,), 5.5412635))


def test_the_gradient_of_the_two_hot_loss_sums_to_zero_and_stays_out_of_the_value() -> None:
    logits = torch.randn(6, 255, requires_grad=True)
    value = torch.tensor([0.0, 1.0, -21.0, 1e4, 1e9, -0.3], requires_grad=True)
    HEAD.loss(logits, value).sum().backward()
    assert logits.grad is not None and value.grad is None
    assert float(logits.grad.abs().sum()) > 6.0
    torch.testing.assert_close(logits.grad.sum(-1), torch.zeros(6), atol=1e-6, rtol=0)


def test_unimix_mixes_one_percent_of_uniform_into_the_probabilities() -> None:
    probs = unimix_probs(torch.tensor([100.0, 0.0, 0.0, 0.0]), 0.01)
    torch.testing.assert_close(probs, torch.tensor([0.9925, 0.0025, 0.0025, 0.0025]))
    torch.testing.assert_close(unimix_log_probs(torch.tensor([100.0, 0.0, 0.0, 0.0]), 0.01), probs.log())
    logits = torch.randn(5, 7)
    assert torch.equal(unimix_log_probs(logits, 0.0), logits.log_softmax(-1))
    assert unimix_probs(logits.bfloat16(), 0.01).dtype == torch.float32


def test_kl_of_equal_distributions_is_zero() -> None:
    log_probs = unimix_log_probs(torch.randn(3, 4, 5) * 10, 0.01)
    assert torch.equal(categorical_kl(log_probs, log_probs), torch.zeros(3))


def test_kl_is_summed_over_latents_and_bounded_by_the_unimix() -> None:
    left = unimix_log_probs(torch.eye(16)[0].expand(32, 16) * 1e4, 0.01)
    right = unimix_log_probs(torch.eye(16)[1].expand(32, 16) * 1e4, 0.01)
    kl, bound = float(categorical_kl(left, right)) / 32, math.log(16 / 0.01)
    assert bound - 0.2 < kl < bound
    high, low = 0.99 + 0.01 / 16, 0.01 / 16
    assert kl == pytest.approx((high - low) * math.log(high / low), rel=1e-5)


def test_kl_and_entropy_equal_those_of_torch() -> None:
    left, right = (unimix_log_probs(torch.randn(6, 4, 5), 0.01) for _ in range(2))
    p, q = (
        torch.distributions.Independent(torch.distributions.Categorical(logits=x), 1) for x in (left, right)
    )
    torch.testing.assert_close(categorical_kl(left, right), torch.distributions.kl_divergence(p, q))
    torch.testing.assert_close(categorical_entropy(left).sum(-1), p.entropy())


def test_samples_come_as_often_as_their_probabilities_say() -> None:
    probs, draws = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.05, 0.0125]), 20_000
    onehot = sample_onehot(probs.expand(draws, 6), seeded(3).exponential(draws, 6))
    assert torch.equal(onehot.sum(-1), torch.ones(draws)) and set(onehot.unique().tolist()) == {0.0, 1.0}
    expected = draws * probs
    chi_square = float(((onehot.sum(0) - expected).square() / expected).sum())
    # The limit is the 99.9 % point for 5 degrees of freedom.
    assert chi_square < 20.5


def test_noise_without_a_generator_gives_the_mode() -> None:
    probs = torch.rand(50, 6)
    onehot = sample_onehot(probs, MODE.exponential(50, 6))
    assert torch.equal(onehot.argmax(-1), probs.argmax(-1))
    assert torch.equal(MODE.normal(3), torch.zeros(3)) and MODE.get_state().numel() == 0


def test_restoring_the_noise_repeats_it() -> None:
    noise = seeded(1)
    state = noise.get_state()
    first = noise.exponential(5), noise.normal(5)
    assert not torch.equal(noise.normal(5), first[1])
    noise.set_state(state)
    assert torch.equal(noise.exponential(5), first[0]) and torch.equal(noise.normal(5), first[1])


@pytest.mark.parametrize("kind", ["exponential", "normal"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_draw_the_noise_of_one_process_and_the_memory_of_their_own(
    kind: str, axis: int, size: int
) -> None:
    shape = (5, 8, 3) if axis else (8, 5, 3)
    one, parts = seeded(0), [Noise(seeded(0).generator, ranks=Ranks(index, size)) for index in range(size)]
    own = tuple(length // size if position == axis else length for position, length in enumerate(shape))
    for _ in range(2):
        drawn = [getattr(part, kind)(*own, axis=axis) for part in parts]
        assert torch.equal(torch.cat(drawn, axis), getattr(one, kind)(*shape))
        assert all(each.untyped_storage().nbytes() == 4 * each.numel() for each in drawn)
    assert all(torch.equal(part.get_state(), one.get_state()) for part in parts)


def test_the_straight_through_sample_is_one_hot_with_the_gradient_of_the_mixed_probabilities() -> None:
    logits = torch.randn(8, 4, 5, requires_grad=True)
    noise, weight = seeded(0).exponential(8, 4, 5), torch.randn(8, 4, 5)
    probs = unimix_probs(logits, 0.01)
    sample = straight_through(probs, noise)
    torch.testing.assert_close(sample.detach(), sample_onehot(probs, noise), atol=1e-6, rtol=0)
    assert sample_onehot(probs, noise).grad_fn is None
    (through,) = torch.autograd.grad((sample * weight).sum(), logits, retain_graph=True)
    (plain,) = torch.autograd.grad((probs * weight).sum(), logits)
    torch.testing.assert_close(through, plain)
    assert float(plain.abs().max()) > 0.0


def test_the_loss_of_two_targets_is_the_sum_of_their_losses() -> None:
    logits, value, other = torch.randn(4, 5, 255), torch.randn(4, 5) * 100, torch.randn(5, 4).t() * 1e9
    left, right = (logits.clone().requires_grad_() for _ in range(2))
    together = HEAD.loss(left, value, other, 0.5)
    apart = HEAD.loss(right, value) + 0.5 * HEAD.loss(right, other)
    torch.testing.assert_close(together, apart)
    together.sum().backward()
    apart.sum().backward()
    torch.testing.assert_close(left.grad, right.grad)
