"""Sizes of the networks."""

from dataclasses import dataclass, fields

from ..utils.errors import UserError, require_range

LARGEST_SIZE, MOST_LAYERS = 100_000, 100
"""Far more than any machine trains: what is larger is a mistake in typing."""


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
