"""Encoder that converts observations into tokens."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from ..utils.errors import UserError
from ..utils.timestep import ArraySpec
from .config import ModelConfig
from .convolution import CHANNELS, STAGES, ChannelNormSiLU, Downsample, channels_last, in_groups
from .distributions import symlog
from .layers import MLP


def image_keys(observation: dict[str, ArraySpec]) -> list[str]:
    """Return the sorted names of the image observations."""
    return sorted(key for key, spec in observation.items() if spec.is_image)


def vector_keys(observation: dict[str, ArraySpec]) -> list[str]:
    """Return the sorted names of all other observations."""
    return sorted(key for key, spec in observation.items() if not spec.is_image)


def image_shape(observation: dict[str, ArraySpec]) -> tuple[int, int, int]:
    """Return the height and width of the images, in pixels, and their total number of channels.

    Raises:
        UserError: If the images have different sizes, or a side is not a multiple of 16 from 48 to 256.
    """
    shapes = [observation[key].shape for key in image_keys(observation)]
    height, width, _ = shapes[0]
    if any(shape[:2] != (height, width) for shape in shapes):
        raise UserError(f"All images must have the same size, got {shapes}.")
    for side in (height, width):
        if side % 2**STAGES or not 3 <= side // 2**STAGES <= 16:
            raise UserError(
                f"Image sides must be multiples of 16 from 48 to 256, got {height} x {width}. Set "
                "env.image_size=64."
            )
    return height, width, sum(shape[2] for shape in shapes)


class Encoder(nn.Module):
    """Encodes vectors with an MLP and images with convolutions, and concatenates the tokens in this order.

    uint8 arrays of rank 3 are images (height, width, channels). All other observations are flattened.
    """

    def __init__(self, observation: dict[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__()
        self.images, self.vectors = image_keys(observation), vector_keys(observation)
        self.size = 0
        if self.vectors:
            width = sum(int(torch.Size(observation[key].shape).numel()) for key in self.vectors)
            self.mlp = MLP(width, config.units, config.encoder_layers)
            self.size += config.units
        if self.images:
            height, width, channels = image_shape(observation)
            stages: list[nn.Module] = []
            for multiple in CHANNELS:
                out = multiple * config.depth
                stages += [Downsample(channels, out, config.strided), ChannelNormSiLU(out)]
                channels = out
            self.cnn = channels_last(stages)
            self.size += channels * (height >> STAGES) * (width >> STAGES)
            first = CHANNELS[0] * config.depth * height * width
            self.widest = first >> 2 if config.strided else first

    def forward(self, observation: dict[str, Tensor]) -> Float[Tensor, "batch time tokens"]:
        """Encode (batch, time, ...) observations in stored dtypes. Image tokens are in (h, w, c) order."""
        parts: list[Tensor] = []
        if self.vectors:
            vector = torch.cat([observation[key][..., None].float().flatten(2) for key in self.vectors], -1)
            parts.append(self.mlp(symlog(vector)))
        if self.images:
            image = torch.cat([observation[key] for key in self.images], -1)
            if image.dtype is not torch.uint8:
                raise UserError(f"Images must be uint8 in [0, 255], got {image.dtype}. Do not scale them.")
            batch, time = image.shape[:2]
            tokens = in_groups(self._convolve, image.flatten(0, 1), floats_per_image=self.widest)
            parts.append(tokens.unflatten(0, (batch, time)))
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]

    def _convolve(self, image: UInt8[Tensor, "n h w c"]) -> Float[Tensor, "n tokens"]:
        x = self.cnn(image.permute(0, 3, 1, 2).float().div_(255).sub_(0.5))
        return x.permute(0, 2, 3, 1).flatten(1)
