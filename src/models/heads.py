"""Heads on the model state: reward, continuation, value, policy."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..utils.timestep import ActionSpec
from .config import ModelConfig
from .distributions import (
    CategoricalPolicy,
    Noise,
    Policy,
    bounded_normal,
    twohot_bins,
    twohot_loss,
    twohot_mean,
    unimix_log_probs,
)
from .layers import MLP, Linear

ACTOR_OUTSCALE = 0.01  # the first policy is nearly uniform; dreamerv3 configs.yaml: policy.outscale


class TwoHotHead(nn.Module):
    """A number in raw units as a distribution over exponentially spaced bins; exactly 0 before training.

    Args:
        feature_size: Width of the model state's feature.
        layers: Hidden layers.
        config: Sizes.
    """

    bins: Tensor

    def __init__(self, feature_size: int, layers: int, config: ModelConfig) -> None:
        super().__init__()
        self.mlp = MLP(feature_size, config.units, layers)
        self.out = Linear(config.units, config.bins, outscale=0.0)
        self.register_buffer("bins", twohot_bins(config.bins), persistent=False)

    def forward(self, feature: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch bins"]:
        """Return the logits of the bins."""
        return self.out(self.mlp(feature))

    def mean(self, logits: Float[Tensor, "*batch bins"]) -> Float[Tensor, "*batch"]:
        """Return the expectation, float32, raw units."""
        return twohot_mean(logits, self.bins)

    def loss(
        self,
        logits: Float[Tensor, "*batch bins"],
        value: Float[Tensor, "*batch"],
        other: Float[Tensor, "*batch"] | None = None,
        other_scale: float = 1.0,
    ) -> Float[Tensor, "*batch"]:
        """Return the cross-entropy to `value` in nats, plus `other_scale` times that to `other` if given."""
        return twohot_loss(logits, value, self.bins, other, other_scale)


class ContinueHead(nn.Module):
    """Probability that the episode continues, times the discount (its training target has the factor)."""

    def __init__(self, feature_size: int, config: ModelConfig) -> None:
        super().__init__()
        self.mlp = MLP(feature_size, config.units, config.continue_layers)
        self.out = Linear(config.units, 1)

    def forward(self, feature: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch"]:
        """Return the logit, float32."""
        return self.out(self.mlp(feature)).squeeze(-1).float()

    @staticmethod
    def loss(
        logit: Float[Tensor, "*batch"], is_terminal: Float[Tensor, "*batch"], discount: float
    ) -> Float[Tensor, "*batch"]:
        """Return the cross-entropy, in nats, to the soft label (1 - is_terminal) * discount."""
        return F.binary_cross_entropy_with_logits(logit, (1.0 - is_terminal) * discount, reduction="none")


class Actor(nn.Module):
    """The policy: categorical for discrete actions, a bounded normal for continuous ones.

    Args:
        feature_size: Width of the model state's feature.
        action: Kind and width of the actions.
        unimix: Share of the uniform distribution mixed into a discrete policy.
        config: Sizes.
    """

    def __init__(self, feature_size: int, action: ActionSpec, unimix: float, config: ModelConfig) -> None:
        super().__init__()
        self.is_discrete, self.unimix = action.is_discrete, unimix
        self.mlp = MLP(feature_size, config.units, config.actor_layers)
        self.out = Linear(config.units, action.size, ACTOR_OUTSCALE)
        if not action.is_discrete:
            self.std_out = Linear(config.units, action.size, ACTOR_OUTSCALE)

    def noise(self, source: Noise, *shape: int) -> Float[Tensor, "*batch actions"]:
        """Draw the noise that a policy's `sample` takes; `shape` is (*batch, actions)."""
        return source.exponential(*shape) if self.is_discrete else source.normal(*shape)

    def forward(self, feature: Float[Tensor, "*batch feature"]) -> Policy:
        """Return the policy's distribution at each state."""
        hidden = self.mlp(feature)
        if self.is_discrete:
            return CategoricalPolicy(unimix_log_probs(self.out(hidden), self.unimix))
        return bounded_normal(self.out(hidden), self.std_out(hidden))
