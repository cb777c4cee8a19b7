"""The optimizer compared with a slow float64 version of its four lines."""

import copy
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from reverie.models import LaProp, OptimizerConfig
from reverie.utils.errors import UserError

FINITE = torch.tensor(True)
SHAPES = [(5, 3), (7,), (2, 2, 4), (1,)]
# Gradient sizes. 1e4 is clipped, and 1e-12 is a normal value for eps=1e-20.
SIZES = [1.0, 1e-6, 1e4, 1e-12]


class SlowLaProp:
    """Processes one tensor and one number at a time, in float64."""

    def __init__(self, parameters: list[NDArray], config: OptimizerConfig) -> None:
        self.p, self.c, self.t = [p.astype(np.float64).flatten() for p in parameters], config, 0
        self.v, self.m = ([[0.0] * p.size for p in self.p] for _ in range(2))

    def step(self, gradients: list[NDArray]) -> None:
        c = self.c
        rate = c.learning_rate * (min(1.0, self.t / c.warmup_updates) if c.warmup_updates else 1.0)
        self.t += 1
        for p, v, m, raw in zip(self.p, self.v, self.m, gradients, strict=True):
            g = raw.astype(np.float64).flatten()
            limit = c.agc_clip * max(c.agc_floor, math.sqrt(sum(x * x for x in p)))
            shrink = 1.0 / max(1.0, math.sqrt(sum(x * x for x in g)) / limit)
            for i in range(p.size):
                x = g[i] * shrink
                v[i] = c.beta2 * v[i] + (1 - c.beta2) * x * x
                m[i] = c.beta1 * m[i] + (1 - c.beta1) * x / (math.sqrt(v[i] / (1 - c.beta2**self.t)) + c.eps)
                p[i] -= rate * m[i] / (1 - c.beta1**self.t)


def parameters() -> list[Parameter]:
    values = [torch.randn(shape) for shape in SHAPES]
    values[1].zero_()
    return [Parameter(value) for value in values]


def gradients() -> list[Tensor]:
    return [size * torch.randn(shape) for shape, size in zip(SHAPES, SIZES, strict=True)]


def step(optimizer: LaProp, values: list[Tensor]) -> dict[str, Tensor]:
    for parameter, gradient in zip(optimizer.parameters, values, strict=True):
        parameter.grad = gradient.clone()
    return optimizer.step(finite=FINITE)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(8e-3, [0.0, 4e-3, 8e-3, 8e-3, 8e-3, 6.4e-3, 4e-3, 3e-3]), (2e-3, [0.0, 1e-3, *[2e-3] * 6])],
    ids=["down to the least", "below the least"],
)
def test_the_step_size_falls_as_one_over_the_updates_but_not_below_the_least(
    rate: float, expected: list[float]
) -> None:
    config = OptimizerConfig(learning_rate=rate, warmup_updates=2, decay_from=4, least_learning_rate=3e-3)
    optimizer, found = LaProp([Parameter(torch.ones(2))], config), []
    for updates in (0, 1, 2, 3, 4, 5, 8, 100):
        optimizer.updates.fill_(updates)
        found.append(float(optimizer.learning_rate()))
    assert found == pytest.approx(expected)


def test_a_decay_within_the_warm_up_is_refused() -> None:
    with pytest.raises(UserError, match=r"decay_from=10 is less than optimizer.warmup_updates=1000"):
        OptimizerConfig(decay_from=10)


@pytest.mark.parametrize("warmup", [0, 7])
def test_thirty_updates_equal_the_slow_form(warmup: int) -> None:
    config = OptimizerConfig(learning_rate=1e-2, warmup_updates=warmup)
    ours = LaProp(parameters(), config)
    slow = SlowLaProp([p.detach().numpy() for p in ours.parameters], config)
    start = [p.detach().clone() for p in ours.parameters]
    for update in range(30):
        values = gradients()
        if update % 5 == 0:
            values[0].zero_()
        step(ours, values)
        slow.step([value.numpy() for value in values])
        for parameter, expected, shape in zip(ours.parameters, slow.p, SHAPES, strict=True):
            reference = torch.from_numpy(expected).view(shape)
            torch.testing.assert_close(parameter.detach().double(), reference, atol=2e-6, rtol=1e-5)
    for parameter, initial in zip(ours.parameters, start, strict=True):
        assert float((parameter.detach() - initial).norm()) > 1e-2


def test_the_first_update_of_a_warm_up_moves_nothing() -> None:
    optimizer = LaProp(parameters(), OptimizerConfig(learning_rate=1.0, warmup_updates=4))
    start = [p.detach().clone() for p in optimizer.parameters]
    step(optimizer, gradients())
    assert all(torch.equal(p, s) for p, s in zip(optimizer.parameters, start, strict=True))
    rates = []
    for _ in range(6):
        rates.append(float(optimizer.learning_rate()))
        step(optimizer, gradients())
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])
    assert not any(torch.equal(p, s) for p, s in zip(optimizer.parameters, start, strict=True))


def test_a_tensor_of_zeros_moves_by_the_full_step() -> None:
    parameter = Parameter(torch.zeros(3))
    optimizer = LaProp([parameter], OptimizerConfig(learning_rate=1e-3, warmup_updates=0))
    step(optimizer, [torch.tensor([5.0, -5.0, 0.0])])
    torch.testing.assert_close(parameter.detach(), torch.tensor([-1e-3, 1e-3, 0.0]))


def test_clipping_is_per_tensor_and_relative_to_its_norm() -> None:
    optimizer = LaProp([Parameter(torch.full((4,), 5.0)), Parameter(torch.zeros(1))], OptimizerConfig())
    norms = step(optimizer, [torch.full((4,), 50.0), torch.full((1,), 7.0)])
    assert float(norms["gradient_norm"]) == pytest.approx(math.hypot(100.0, 7.0))
    assert float(norms["clipped_norm"]) == pytest.approx(math.hypot(0.3 * 10.0, 0.3 * 1e-3))
    small = step(optimizer, [torch.full((4,), 0.5), torch.full((1,), 1e-4)])
    assert float(small["clipped_norm"]) == float(small["gradient_norm"]) == pytest.approx(1.0)


@pytest.mark.parametrize("size", [3e-18, 1e-19, 1e-22, 1e-38, 1e-45])
def test_gradients_whose_square_underflows_do_not_explode(size: float) -> None:
    optimizer = LaProp([Parameter(torch.ones(4))], OptimizerConfig(learning_rate=1.0, warmup_updates=0))
    for _ in range(5):
        step(optimizer, [torch.full((4,), size)])
        assert torch.equal(optimizer.parameters[0].detach(), torch.ones(4))


def test_the_smallest_gradients_that_count_give_a_step_of_ordinary_size() -> None:
    optimizer = LaProp([Parameter(torch.ones(4))], OptimizerConfig(learning_rate=1.0, warmup_updates=0))
    step(optimizer, [torch.full((4,), 5e-18)])
    torch.testing.assert_close(optimizer.parameters[0].detach(), torch.zeros(4), atol=0.02, rtol=0)


def test_a_restored_optimizer_goes_on_bit_for_bit() -> None:
    config = OptimizerConfig(learning_rate=1e-2, warmup_updates=8)
    first = LaProp(parameters(), config)
    history = [gradients() for _ in range(10)]
    for values in history[:5]:
        step(first, values)
    second = LaProp([Parameter(p.detach().clone()) for p in first.parameters], config)
    second.load_state_dict(first.state_dict())
    for values in history[5:]:
        step(first, values)
        step(second, values)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters, second.parameters, strict=True))
    assert float(second.updates) == 10.0


def test_a_loaded_state_is_a_copy() -> None:
    first, second = (LaProp(parameters(), OptimizerConfig()) for _ in range(2))
    second.load_state_dict(first.state_dict())
    step(first, gradients())
    assert float(second.updates) == 0.0 and not any(bool(v.any()) for v in second.mean_square)


def test_an_update_frees_the_gradients() -> None:
    optimizer = LaProp(parameters(), OptimizerConfig())
    step(optimizer, gradients())
    assert all(p.grad is None for p in optimizer.parameters)


def test_a_missing_gradient_counts_as_zeros() -> None:
    config = OptimizerConfig(learning_rate=1e-2, warmup_updates=0)
    missing = LaProp(parameters(), config)
    start = [p.detach().clone() for p in missing.parameters]
    zeros = LaProp([Parameter(value.clone()) for value in start], config)
    for _ in range(3):
        values = gradients()
        values[0].zero_()
        step(zeros, values)
        for parameter, gradient in zip(missing.parameters[1:], values[1:], strict=True):
            parameter.grad = gradient.clone()
        missing.step(finite=FINITE)
    assert all(torch.equal(a, b) for a, b in zip(missing.parameters, zeros.parameters, strict=True))
    is_still = [torch.equal(p, initial) for p, initial in zip(missing.parameters, start, strict=True)]
    assert is_still == [True, False, False, False]


def test_an_update_reports_the_step_size_that_it_used() -> None:
    optimizer = LaProp(parameters(), OptimizerConfig(learning_rate=1.0, warmup_updates=4))
    used = [float(step(optimizer, gradients())["learning_rate"]) for _ in range(6)]
    assert used == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0, 1.0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("earlier", [0, 3])
def test_an_update_that_is_not_finite_leaves_parameters_and_state_as_they_are(
    bad: float, earlier: int
) -> None:
    optimizer = LaProp(parameters(), OptimizerConfig(learning_rate=1e-2, warmup_updates=2))
    for _ in range(earlier):
        step(optimizer, gradients())
    state = copy.deepcopy([optimizer.parameters, *optimizer.state_dict().values()])
    values = gradients()
    values[2][0, 1, 2] = bad
    for parameter, gradient in zip(optimizer.parameters, values, strict=True):
        parameter.grad = gradient
    norms = optimizer.gradient_norms()
    assert norms.isfinite().tolist() == [True, True, False, True]
    optimizer.step()
    for before, now in zip(state, [optimizer.parameters, *optimizer.state_dict().values()], strict=True):
        torch.testing.assert_close(now, before, rtol=0, atol=0)
    assert all(p.grad is None for p in optimizer.parameters)


def test_after_updates_that_were_not_applied_the_next_one_is_as_without_them() -> None:
    config = OptimizerConfig(learning_rate=1e-2, warmup_updates=4)
    plain = LaProp(parameters(), config)
    gated = LaProp([Parameter(p.detach().clone()) for p in plain.parameters], config)
    for update in range(6):
        values = gradients()
        for parameter in gated.parameters:
            parameter.grad = torch.full_like(parameter, float("nan"))
        gated.step(finite=~FINITE)
        ours, theirs = step(gated, values), step(plain, values)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours), update
    assert all(torch.equal(a, b) for a, b in zip(gated.parameters, plain.parameters, strict=True))
    assert float(gated.updates) == float(plain.updates) == 6.0


def test_gradient_norms_are_those_of_each_tensor_and_zero_without_a_gradient() -> None:
    optimizer = LaProp([Parameter(torch.ones(3)) for _ in range(3)], OptimizerConfig())
    optimizer.parameters[0].grad = torch.tensor([3.0, 0.0, 4.0])
    optimizer.parameters[2].grad = torch.tensor([1e30, 0.0, 0.0])
    assert optimizer.gradient_norms().tolist() == [5.0, 0.0, float("inf")]


def test_schedulers_hooks_and_closures_see_a_torch_optimizer() -> None:
    optimizer = LaProp(parameters(), OptimizerConfig(learning_rate=1.0, warmup_updates=0))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    seen = []
    optimizer.register_step_post_hook(lambda each, *_: seen.append(each))
    rates = []

    def closure() -> None:
        torch.cat([p.flatten() for p in optimizer.parameters]).square().sum().backward()

    for _ in range(3):
        rates.append(float(optimizer.step(closure)["learning_rate"]))
        scheduler.step()
    assert rates == [1.0, 0.5, 0.25] and seen == [optimizer] * 3
    assert {name for state in optimizer.state.values() for name in state} == {"mean_square", "momentum"}
    with pytest.raises(ValueError, match="one parameter group"):
        optimizer.add_param_group({"params": parameters()})
