"""Returns compared with the mixture of n-step returns that defines them."""

import numpy as np
import pytest
import torch
from torch import Tensor

from reverie.models import ReturnNormalizer, lambda_return


def n_step(reward: Tensor, discount: Tensor, value: Tensor, t: int, n: int) -> float:
    """Return the discounted sum of n rewards after step t and of the value n steps later."""
    total, carried = 0.0, 1.0
    for k in range(t + 1, t + n + 1):
        total += carried * float(reward[k])
        carried *= float(discount[k])
    return total + carried * float(value[t + n])


def mixture(reward: Tensor, discount: Tensor, value: Tensor, lambda_: float) -> Tensor:
    """Return (1 - lambda) sum_n lambda^(n-1) G(n), with the remaining weight on the longest return."""
    last = reward.shape[0] - 1
    returns = []
    for t in range(last):
        longest = last - t
        weights = [(1 - lambda_) * lambda_ ** (n - 1) for n in range(1, longest)] + [lambda_ ** (longest - 1)]
        returns.append(sum(w * n_step(reward, discount, value, t, n) for n, w in enumerate(weights, 1)))
    return torch.tensor(returns, dtype=torch.float64)


def trajectories() -> tuple[Tensor, Tensor, Tensor]:
    reward, value = torch.randn(2, 3, 9, dtype=torch.float64).unbind(0)
    discount = 0.9 + 0.1 * torch.rand(3, 9, dtype=torch.float64)
    # This is a terminal state in the middle.
    discount[1, 4] = 0.0
    return reward, discount, value


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.95, 1.0])
def test_the_lambda_return_is_the_mixture_of_n_step_returns(lambda_: float) -> None:
    reward, discount, value = trajectories()
    expected = torch.stack([mixture(*row, lambda_) for row in zip(reward, discount, value, strict=True)])
    torch.testing.assert_close(lambda_return(reward, discount, value, lambda_), expected)


def test_lambda_zero_is_the_one_step_target() -> None:
    reward, discount, value = trajectories()
    expected = reward[:, 1:] + discount[:, 1:] * value[:, 1:]
    torch.testing.assert_close(lambda_return(reward, discount, value, 0.0), expected)


def test_lambda_one_uses_no_value_but_the_last() -> None:
    reward, discount, value = trajectories()
    other = torch.cat([torch.randn(3, 8, dtype=torch.float64), value[:, -1:]], 1)
    torch.testing.assert_close(
        lambda_return(reward, discount, value, 1.0), lambda_return(reward, discount, other, 1.0)
    )
    assert float(lambda_return(reward[:, -2:], discount[:, -2:], value[:, -2:], 1.0)[0, 0]) == pytest.approx(
        float(reward[0, -1] + discount[0, -1] * value[0, -1])
    )


def test_nothing_after_a_terminal_reaches_the_steps_before_it() -> None:
    reward, discount, value = trajectories()
    before = lambda_return(reward, discount, value, 0.95)
    reward[1, 5:] += 100.0
    value[1, 4:] -= 100.0
    after = lambda_return(reward, discount, value, 0.95)
    assert torch.equal(before[1, :4], after[1, :4]) and not torch.equal(before[1, 4:], after[1, 4:])


def test_the_first_reward_and_value_are_not_used() -> None:
    reward, discount, value = trajectories()
    expected = lambda_return(reward, discount, value, 0.95)
    for array in (reward, discount, value):
        array[:, 0] = 1e6
    assert torch.equal(lambda_return(reward, discount, value, 0.95), expected)


def test_a_truncation_bootstraps_from_the_value_of_the_final_observation() -> None:
    reward, discount, value = trajectories()
    lambda_ = torch.full_like(reward, 0.95)
    # This is the final record of an episode that did not terminate.
    lambda_[0, 3] = 0.0
    got = lambda_return(reward, discount, value, lambda_)
    assert float(got[0, 2]) == pytest.approx(float(reward[0, 3] + discount[0, 3] * value[0, 3]))
    torch.testing.assert_close(got[0, :3], mixture(reward[0, :4], discount[0, :4], value[0, :4], 0.95))


def test_the_normaliser_follows_the_percentiles_at_its_rate_without_debiasing() -> None:
    normalizer = ReturnNormalizer(0.01, 0.05, 0.95)
    low = high = 0.0
    for update in range(40):
        returns = torch.randn(16, 7) * 50 + update
        normalizer.update(returns)
        p5, p95 = np.percentile(returns.numpy().astype(np.float64), [5, 95])
        low, high = low + 0.01 * (p5 - low), high + 0.01 * (p95 - high)
        assert float(normalizer.low) == pytest.approx(low, rel=1e-4, abs=1e-5)
        assert float(normalizer.high) == pytest.approx(high, rel=1e-4, abs=1e-5)
        assert float(normalizer.scale()) == pytest.approx(max(1.0, high - low), rel=1e-4)
    assert float(normalizer.scale()) > 10.0


def test_constant_returns_keep_the_scale_at_one() -> None:
    normalizer = ReturnNormalizer(0.01, 0.05, 0.95)
    for _ in range(500):
        normalizer.update(torch.full((8, 3), 77.0))
        assert float(normalizer.scale()) == 1.0
    assert float(normalizer.high) == pytest.approx(77.0 * (1 - 0.99**500), rel=1e-4)


def test_the_scale_is_part_of_the_saved_state() -> None:
    normalizer, restored = ReturnNormalizer(0.5, 0.05, 0.95), ReturnNormalizer(0.5, 0.05, 0.95)
    normalizer.update(torch.randn(99) * 100)
    restored.load_state_dict(normalizer.state_dict())
    assert torch.equal(restored.scale(), normalizer.scale()) and float(restored.scale()) > 10.0
