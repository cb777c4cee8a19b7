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

    `bins` are zero and the positive bins, the symexp of evenly spaced points in [0, 20]. Every positive
    bin has a negative mirror image. Logits start with the bins and end with the mirror images, in that order.
    """

    bins: Tensor

    def __init__(self, feature_size: int, layers: int, config: ModelConfig) -> None:
        super().__init__()
        self.mlp = MLP(feature_size, config.units, layers)
        # The rows are in ascending order of the bins, like the columns of the reference.
        self.out = Linear(config.units, config.bins, outscale=0.0)
        bins = symexp(torch.linspace(-20.0, 0.0, config.bins // 2 + 1)).abs().flip(0)
        self.register_buffer("bins", bins, persistent=False)

    def forward(self, feature: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch bins"]:
        """Return the float32 logits of the bins.

        In `mean`, terms of up to 4.85e8 must cancel exactly. If one product computed all logits, the bias
        gradients of the last 31 columns would be summed in another order. Two products of equal shape keep
        mirrored parameters equal, bit for bit. In bfloat16, mirrored logits would differ by up to 6 %.
        """
        hidden, half = self.mlp(feature).float(), self.bins.shape[0] - 1
        weight, bias = self.out.weight, self.out.bias
        with full_precision(hidden):
            positive = F.linear(hidden, weight[half:], bias[half:])
            negative = F.linear(hidden, weight[: half + 1].flip(0), bias[: half + 1].flip(0))
        # Splitting first gives both products contiguous gradients, so that rows are summed in the same order.
        return torch.cat([*positive.split((1, half), -1), negative[..., 1:]], -1)

    def mean(self, logits: Float[Tensor, "*batch bins"]) -> Float[Tensor, "*batch"]:
        """Return the float32 expectation in raw units. It is exactly 0 for symmetric probabilities.

        Mirrored probabilities are subtracted first, because bins of up to +-4.85e8 would cancel badly.
        """
        _, positive, negative = logits.float().softmax(-1).tensor_split((1, self.bins.shape[0]), -1)
        return ((positive - negative) * self.bins[1:]).sum(-1)

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
        """Return the indices (..., 2) of the logits of the two bins around each value, and their weights."""
        bins, value = self.bins, value.detach().float().contiguous().unsqueeze(-1)
        size = value.abs().clamp(max=bins[-1])
        above = torch.searchsorted(bins, size).clamp(1, bins.shape[0] - 1)
        weight = (size - bins[above - 1]) / (bins[above] - bins[above - 1])
        index = torch.cat([above - 1, above], -1)
        index = torch.where((value < 0.0) & (index > 0), index + bins.shape[0] - 1, index)
        return index, torch.cat([1.0 - weight, weight], -1)


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
