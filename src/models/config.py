"""Sizes of the networks."""

from dataclasses import dataclass, fields, replace

from ..utils.errors import UserError, require_range

LARGEST_SIZE, MOST_LAYERS = 100_000, 100
"""Far more than any machine trains: what is larger is a mistake in typing."""


LEARNERS = ("world_model", "actor", "critic")
"""What has its own optimiser, and may have its own learning rate."""


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """Settings of every network; `configs/model/*.yaml` sets them. Counts, unless a field says otherwise."""

    init: str | None = None
    """Networks to begin with: a safetensors file, or the folder of a run, whose newest checkpoint counts.
    Optimisers and replay begin empty; null draws new networks from `seed`."""

    units: int = 256
    """Width of every hidden layer of the heads, the vector encoder and the vector decoder."""

    deter: int = 2048
    """Width of the recurrent state; `blocks` divides it."""

    hidden: int = 256
    """Width of the hidden layers inside the RSSM."""

    stoch: int = 32
    """Categorical latents per step."""

    classes: int = 16
    """Classes of each categorical latent, at most 256 (replay stores a class in one byte)."""

    depth: int = 16
    """Base number of convolution channels."""

    blocks: int = 8
    """Diagonal blocks of the recurrent layers."""

    strided: bool = False
    """Stride-2 convolutions instead of stride 1 with max-pooling: a quarter of the convolution work."""

    latent_unimix: float = 0.01
    """Share of the uniform distribution mixed into every categorical latent, in [0, 1)."""

    bins: int = 255
    """Bins of the two-hot reward and value heads; odd, so that one bin is exactly zero."""

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

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type is int:
                require_range("model", self, field.name, ge=1)
                most = MOST_LAYERS if field.name.endswith("_layers") else LARGEST_SIZE
                require_range("model", self, field.name, le=most)
        require_range("model", self, "latent_unimix", ge=0, lt=1)
        if self.classes > 256:
            raise UserError(f"model.classes must be at most 256 (one byte per latent), got {self.classes}.")
        if self.deter % self.blocks:
            raise UserError(f"model.blocks={self.blocks} must divide model.deter={self.deter}.")
        if 4 * self.depth % self.blocks:
            raise UserError(f"model.blocks={self.blocks} must divide 4 * model.depth={4 * self.depth}.")
        if self.bins % 2 == 0 or self.bins < 3:
            raise UserError(
                f"model.bins must be odd, so that one bin is zero, and at least 3, got {self.bins}."
            )


@dataclass(kw_only=True, slots=True)
class OptimizerConfig:
    """Settings of `LaProp`."""

    learning_rate: float = 4e-5
    """Step size after the warm-up."""

    world_model_learning_rate: float | None = None
    """Step size of the world model. None: `learning_rate`."""

    actor_learning_rate: float | None = None
    """Step size of the actor. None: `learning_rate`. A small model needs large steps, but a step of LaProp
    is as large as the rate whatever the gradient: an actor with that rate loses its entropy to noise."""

    critic_learning_rate: float | None = None
    """Step size of the critic. None: `learning_rate`."""

    warmup_updates: int = 1000
    """Updates over which the step size grows linearly from 0, its value at the first update. 0 for none."""

    decay_from: int = 0
    """Updates after which the step size falls as `decay_from` / updates; 0 for never. It needs no end of the
    run, so a run can be made longer."""

    least_learning_rate: float = 1e-4
    """Step size below which the decay does not go; a smaller one stays as it is."""

    agc_clip: float = 0.3
    """Largest gradient norm of a tensor, as a share of the tensor's own norm."""

    agc_floor: float = 1e-3
    """A tensor's norm counts as at least this, so that a tensor of zeros can move."""

    beta1: float = 0.9
    """Decay of the momentum."""

    beta2: float = 0.999  # the reference code's value in every release; the paper's text says 0.99
    """Decay of the mean square."""

    eps: float = 1e-20
    """Added to the root mean square."""

    def __post_init__(self) -> None:
        rates = ("learning_rate", *(f"{part}_learning_rate" for part in LEARNERS))
        require_range("optimizer", self, *rates, "least_learning_rate", "agc_clip", "agc_floor", "eps", gt=0)
        require_range("optimizer", self, "warmup_updates", "decay_from", ge=0)
        require_range("optimizer", self, "beta1", "beta2", ge=0, lt=1)
        if 0 < self.decay_from < self.warmup_updates:
            raise UserError(
                f"optimizer.decay_from={self.decay_from} is within optimizer.warmup_updates="
                f"{self.warmup_updates}. Set it to {self.warmup_updates} or more, or 0 for no decay."
            )

    def of(self, learner: str) -> "OptimizerConfig":
        """Return the settings of one of `LEARNERS`: its own learning rate, or the common one."""
        own = getattr(self, f"{learner}_learning_rate")
        return self if own is None else replace(self, learning_rate=own)
