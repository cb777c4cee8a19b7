"""Settings of the networks and their optimizers."""

from dataclasses import dataclass, fields, replace

from ..utils.components import check_part
from ..utils.errors import UserError, require_range

LARGEST_SIZE, MOST_LAYERS = 100_000, 100
"""Sanity limits: larger values are probably typos."""


LEARNERS = ("world_model", "actor", "critic")
"""Components that have separate optimizers and may have separate learning rates."""


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """Network sizes, set by `configs/model/*.yaml`. Values are counts unless stated otherwise."""

    init: str | None = None
    """Initial weights: a safetensors file or a run folder (its newest checkpoint). The optimizers
    and the replay buffer start empty. null initializes the networks randomly from `seed`."""

    units: int = 256
    """Width of every hidden layer of the heads, the vector encoder and the vector decoder."""

    deter: int = 2048
    """Width of the recurrent state, a multiple of `blocks`."""

    hidden: int = 256
    """Width of the hidden layers inside the RSSM."""

    stoch: int = 32
    """Number of categorical latents per step."""

    classes: int = 16
    """Classes per categorical latent: at most 256, because the replay buffer stores a class in one byte."""

    depth: int = 16
    """Base number of convolution channels."""

    blocks: int = 8
    """Number of diagonal blocks in the recurrent layers."""

    strided: bool = False
    """Use stride-2 convolutions instead of stride 1 with max-pooling, for a quarter of the work."""

    latent_unimix: float = 0.01
    """Weight of the uniform distribution mixed into every categorical latent, in [0, 1)."""

    bins: int = 255
    """Number of bins of the two-hot reward and value heads. Must be odd, so that one bin is exactly zero."""

    encoder_layers: int = 3
    """Layers of the vector encoder."""

    decoder_layers: int = 3
    """Layers of the vector decoder."""

    reward_layers: int = 1
    """Hidden layers of the reward head."""

    continue_layers: int = 1
    """Hidden layers of the continue head."""

    actor_layers: int = 3
    """Hidden layers of the actor."""

    critic_layers: int = 3
    """Hidden layers of the critic."""

    encoder: str = "default"
    """Class of the encoder: `default`, or `module:Class` of your own (docs/components.md)."""

    decoder: str = "default"
    """Class of the decoder: `default`, or `module:Class`."""

    reward_head: str = "two_hot"
    """Class of the reward head: `two_hot`, or `module:Class`."""

    value_head: str = "two_hot"
    """Class of the critic: `two_hot`, or `module:Class`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type is int:
                require_range("model", self, field.name, ge=1)
                most = MOST_LAYERS if field.name.endswith("_layers") else LARGEST_SIZE
                require_range("model", self, field.name, le=most)
        require_range("model", self, "latent_unimix", ge=0, lt=1)
        for name in ("encoder", "decoder", "reward_head", "value_head"):
            check_part(f"model.{name}", getattr(self, name))
        if self.classes > 256:
            raise UserError(f"model.classes must be at most 256 (one byte per latent), got {self.classes}.")
        if self.deter % self.blocks:
            raise UserError(f"model.blocks={self.blocks} must divide model.deter={self.deter}.")
        if 4 * self.depth % self.blocks:
            raise UserError(f"model.blocks={self.blocks} must divide 4 * model.depth={4 * self.depth}.")
        if self.bins % 2 == 0 or self.bins < 3:
            raise UserError(
                f"model.bins must be odd (so that one bin is zero) and at least 3, got {self.bins}."
            )


@dataclass(kw_only=True, slots=True)
class OptimizerConfig:
    """Settings of `LaProp`."""

    learning_rate: float = 4e-5
    """Learning rate after the warm-up."""

    world_model_learning_rate: float | None = None
    """Learning rate of the world model. Defaults to `learning_rate`."""

    actor_learning_rate: float | None = None
    """Learning rate of the actor. Defaults to `learning_rate`. Use a lower value if `learning_rate` is high:
    LaProp's steps do not shrink with the gradient, so noise would destroy the actor's entropy."""

    critic_learning_rate: float | None = None
    """Learning rate of the critic. Defaults to `learning_rate`."""

    warmup_updates: int = 1000
    """Updates over which the learning rate rises linearly from 0. 0 disables the warm-up."""

    decay_from: int = 0
    """Updates after which the learning rate decays as `decay_from` / updates. 0 disables the decay. The
    schedule does not depend on the length of the run, so a run can be extended."""

    least_learning_rate: float = 1e-4
    """Learning rate at which the decay stops. Smaller learning rates are not decayed."""

    agc_clip: float = 0.3
    """Maximum gradient norm of a tensor, relative to the norm of the tensor itself."""

    agc_floor: float = 1e-3
    """Lower bound of the tensor norm in clipping, so that all-zero tensors can be updated."""

    beta1: float = 0.9
    """Decay rate of the momentum."""

    beta2: float = 0.999
    """Decay rate of the mean square. All releases of the reference code use 0.999. The paper states 0.99."""

    eps: float = 1e-20
    """Constant added to the root mean square to avoid dividing by zero."""

    def __post_init__(self) -> None:
        rates = ("learning_rate", *(f"{part}_learning_rate" for part in LEARNERS))
        require_range("optimizer", self, *rates, "least_learning_rate", "agc_clip", "agc_floor", "eps", gt=0)
        require_range("optimizer", self, "warmup_updates", "decay_from", ge=0)
        require_range("optimizer", self, "beta1", "beta2", ge=0, lt=1)
        if 0 < self.decay_from < self.warmup_updates:
            raise UserError(
                f"optimizer.decay_from={self.decay_from} is less than optimizer.warmup_updates="
                f"{self.warmup_updates}. Set it to at least {self.warmup_updates}, or to 0 for no decay."
            )

    def of(self, learner: str) -> "OptimizerConfig":
        """Return the settings for one of `LEARNERS`, with its specific learning rate if one is set."""
        own = getattr(self, f"{learner}_learning_rate")
        return self if own is None else replace(self, learning_rate=own)
