"""Prediction heads on the model state: reward, continuation, value and policy."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..utils.timestep import ActionSpec
from .config import ModelConfig
from .distributions import (
    CategoricalPolicy,
    MultiCategoricalPolicy,
    Noise,
    Policy,
    bounded_normal,
    symexp,
    unimix_log_probs,
    unimix_log_probs_of_parts,
)
from .layers import MLP, Linear, full_precision, product_dtype
from .rssm import LatentState

# A small scale makes the initial policy nearly uniform (policy.outscale in dreamerv3's configs.yaml).
ACTOR_OUTSCALE = 0.01


class TwoHotHead(nn.Module):
    """Predicts a number in raw units (initially exactly 0) as a distribution over exponentially spaced bins.

    `bins` are the symexp of evenly spaced points in [-20, 20], mirrored so that they are exactly
    antisymmetric.
    """

    bins: Tensor

    def __init__(self, feature_size: int, layers: int, config: ModelConfig) -> None:
        super().__init__()
        self.mlp = MLP(feature_size, config.units, layers)
        self.out = Linear(config.units, config.bins, outscale=0.0)
        half = symexp(torch.linspace(-20.0, 0.0, config.bins // 2 + 1))
        self.register_buffer("bins", torch.cat([half, -half[:-1].flip(0)]), persistent=False)

    def forward(self, feature: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch bins"]:
        """Return the float32 logits of the bins.

        In bfloat16, mirrored logits would differ by up to 6 %, but terms of up to 4.85e8 must cancel in
        `mean`.
        """
        hidden = self.mlp(feature)
        with full_precision(hidden):
            return self.out(hidden.float())

    def mean(self, logits: Float[Tensor, "*batch bins"]) -> Float[Tensor, "*batch"]:
        """Return the float32 expectation in raw units. It is exactly 0 for symmetric probabilities.

        Mirrored probabilities are subtracted first, because bins of up to +-4.85e8 would cancel badly.
        """
        probs = logits.float().softmax(-1)
        half = self.bins.shape[0] // 2
        difference = probs[..., half + 1 :] - probs[..., :half].flip(-1)
        return (difference * self.bins[half + 1 :]).sum(-1)

    def loss(
        self,
        logits: Float[Tensor, "*batch bins"],
        value: Float[Tensor, "*batch"],
        other: Float[Tensor, "*batch"] | None = None,
        other_scale: float = 1.0,
    ) -> Float[Tensor, "*batch"]:
        """Return the cross-entropy, in nats, with the two-hot encoding of `value` (raw units, no gradient).

        The encoding interpolates linearly, in raw units, between two adjacent bins and clamps values to the
        range of the bins. `other_scale` times the cross-entropy with `other` is added.
        """
        index, weight = self._encode(value)
        if other is not None:
            other_index, other_weight = self._encode(other)
            index = torch.cat([index, other_index], -1)
            weight = torch.cat([weight, other_scale * other_weight], -1)
        return -(weight * logits.float().log_softmax(-1).gather(-1, index)).sum(-1)

    def _encode(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices (..., 2) of the bins below and above each value, and their weights."""
        bins = self.bins
        value = value.detach().float().clamp(bins[0], bins[-1]).contiguous().unsqueeze(-1)
        above = torch.searchsorted(bins, value).clamp(1, bins.shape[0] - 1)
        low, high = bins[above - 1], bins[above]
        weight = (value - low) / (high - low)
        return torch.cat([above - 1, above], -1), torch.cat([1.0 - weight, weight], -1)


class ContinueHead(nn.Module):
    """Predicts the probability of continuation times the discount, matching the training target."""

    def __init__(self, feature_size: int, config: ModelConfig) -> None:
        super().__init__()
        self.mlp = MLP(feature_size, config.units, config.continue_layers)
        self.out = Linear(config.units, 1)

    def forward(self, feature: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch"]:
        """Return the float32 logit."""
        return self.out(self.mlp(feature)).squeeze(-1).float()

    @staticmethod
    def loss(
        logit: Float[Tensor, "*batch"], is_terminal: Float[Tensor, "*batch"], discount: float
    ) -> Float[Tensor, "*batch"]:
        """Return the cross-entropy, in nats, with the soft label (1 - is_terminal) * discount."""
        return F.binary_cross_entropy_with_logits(logit, (1.0 - is_terminal) * discount, reduction="none")


class Reinforce(nn.Module):
    """Policy gradient with an entropy bonus: -(log pi(a) advantage + scale entropy)."""

    def forward(
        self,
        log_prob: Float[Tensor, "n horizon"],
        entropy: Float[Tensor, "n horizon"],
        advantage: Float[Tensor, "n horizon"],
        entropy_scale: float | Tensor,
    ) -> Float[Tensor, "n horizon"]:
        """Return the loss of each imagined action."""
        return -(log_prob * advantage + entropy_scale * entropy)


class Actor(nn.Module):
    """The policy: a bounded normal for continuous actions, or a categorical for discrete actions.

    Several choices are independent categoricals. `unimix` is the weight of a uniform distribution in each.
    """

    def __init__(self, feature_size: int, action: ActionSpec, unimix: float, config: ModelConfig) -> None:
        super().__init__()
        self.action, self.unimix = action, unimix
        self.mlp = MLP(feature_size, config.units, config.actor_layers)
        self.out = Linear(config.units, action.size, ACTOR_OUTSCALE)
        if not action.is_discrete:
            self.std_out = Linear(config.units, action.size, ACTOR_OUTSCALE)

    def noise(self, source: Noise, *shape: int, axis: int = 0) -> Float[Tensor, "*batch actions"]:
        """Draw noise for the policy's `sample`. `shape` is (*batch, actions), `axis` the batch axis."""
        draw = source.exponential if self.action.is_discrete else source.normal
        return draw(*shape, axis=axis)

    def choose(
        self,
        deter: Float[Tensor, "batch deter"],
        stoch: Float[Tensor, "batch stoch classes"],
        noise: Float[Tensor, "batch actions"],
    ) -> tuple[Float[Tensor, "batch feature"], Float[Tensor, "batch actions"]]:
        """Return the state's feature in the dtype of products, and a sampled action. Compilable."""
        feature = LatentState(deter, stoch).feature.to(product_dtype(deter))
        return feature, self(feature).sample(noise)

    def forward(self, feature: Float[Tensor, "*batch feature"]) -> Policy:
        """Return the policy's distribution at each state."""
        hidden = self.mlp(feature)
        if self.action.parts:
            log_probs = unimix_log_probs_of_parts(self.out(hidden), self.action.parts, self.unimix)
            return MultiCategoricalPolicy(log_probs, self.action.parts)
        if self.action.is_discrete:
            return CategoricalPolicy(unimix_log_probs(self.out(hidden), self.unimix))
        return bounded_normal(self.out(hidden), self.std_out(hidden))
