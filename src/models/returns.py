"""Lambda-returns and the scale for normalizing advantages."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


def lambda_return(
    reward: Float[Tensor, "batch time"],
    discount: Float[Tensor, "batch time"],
    value: Float[Tensor, "batch time"],
    lambda_: Float[Tensor, "batch time"] | float,
) -> Float[Tensor, "batch time-1"]:
    """Return the TD(lambda) targets for steps 0 to T-2, computed backwards from the last value.

        G[T-1] = value[T-1]
        G[t]   = reward[t+1] + discount[t+1] * ((1 - lambda_[t+1]) * value[t+1] + lambda_[t+1] * G[t+1])

    Args:
        reward: Reward received on arriving at step t, in raw units. reward[:, 0] is ignored.
        discount: Probability that the episode continues after arriving at step t, times gamma, in [0, 1].
        value: Value of step t, in raw units. value[:, 0] is ignored.
        lambda_: Weight of the longer returns. 0 is one-step TD, and 1 is Monte Carlo.

    Reference: Hafner et al. 2023, arXiv:2301.04104, "Critic learning"; `lambda_return` in
    `dreamerv3/agent.py` of danijar/dreamerv3 at e3f0224.

    >>> one = torch.ones(1, 3)
    >>> lambda_return(one, one, torch.tensor([[0.0, 0.0, 8.0]]), lambda_=1.0)
    tensor([[10.,  9.]])
    """
    longer = lambda_ if isinstance(lambda_, Tensor) else torch.full_like(reward, lambda_)
    short = (reward + discount * (1.0 - longer) * value).unbind(1)
    carry = (discount * longer).unbind(1)
    current = value[:, -1]
    returns: list[Tensor] = []
    for t in reversed(range(1, reward.shape[1])):
        current = short[t] + carry[t] * current
        returns.append(current)
    return torch.stack(returns[::-1], 1)


class ReturnNormalizer(nn.Module):
    """Moving averages of a low and a high percentile of returns. `max(1, high - low)` divides advantages.

    Both start at 0 without bias correction, so the divisor starts at 1. Percentiles are given as fractions.
    """

    low: Tensor
    high: Tensor
    quantiles: Tensor

    def __init__(self, rate: float, low: float, high: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))
        self.register_buffer("quantiles", torch.tensor([low, high]), persistent=False)

    @torch.no_grad()
    def update(self, returns: Float[Tensor, "..."]) -> None:
        """Move both averages towards the percentiles of `returns` (in raw units, from all ranks)."""
        low, high = torch.quantile(returns.float().flatten(), self.quantiles)
        self.low.lerp_(low, self.rate)
        self.high.lerp_(high, self.rate)

    def scale(self) -> Float[Tensor, ""]:
        """Return max(1, high - low) in raw units."""
        return (self.high - self.low).clamp(min=1.0)
