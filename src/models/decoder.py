"""Predict observations from model states and compute reconstruction losses."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from ..utils.timestep import ArraySpec
from .config import ModelConfig
from .convolution import CHANNELS, STAGES, ChannelNormSiLU, Upsample, channels_last, in_groups
from .distributions import symexp, symlog
from .encoder import image_keys, image_shape, vector_keys
from .layers import MLP, BlockLinear, Linear, NormSiLU
from .rssm import LatentState


class ImageDecoder(nn.Module):
    """Decodes model states into one image tensor in [0, 1], with all image keys on the channel axis."""

    def __init__(self, shape: tuple[int, int, int], config: ModelConfig) -> None:
        super().__init__()
        height, width, channels = shape
        self.blocks = config.blocks
        self.grid = (height >> STAGES, width >> STAGES)
        wide = CHANNELS[-1] * config.depth
        cells = self.grid[0] * self.grid[1] * wide
        self.from_deter = BlockLinear(config.deter, cells, config.blocks)
        self.from_stoch = MLP(config.stoch * config.classes, 2 * config.units, 1)
        self.from_stoch.add_module("3", Linear(2 * config.units, cells))
        self.norm = NormSiLU(wide)
        stages: list[nn.Module] = []
        for multiple in reversed(CHANNELS[:-1]):
            out = multiple * config.depth
            stages += [Upsample(wide, out, config.strided), ChannelNormSiLU(out)]
            wide = out
        stages.append(Upsample(wide, channels, config.strided))
        self.cnn = channels_last(stages)
        self.widest = max(wide * height * width >> 2, channels * height * width)

    def forward(self, state: LatentState) -> Float[Tensor, "n h w c"]:
        """Decode n states into images."""
        return in_groups(self._convolve, self._coarse(state), floats_per_image=self.widest)

    def errors(self, state: LatentState, truths: list[UInt8[Tensor, "n h w _"]]) -> Float[Tensor, "n keys"]:
        """Return the `squared_error` of each key without materializing all predictions at the same time."""

        def compare(x: Tensor, *truths: Tensor) -> Tensor:
            painted = self._convolve(x).split([truth.shape[-1] for truth in truths], -1)
            return torch.stack([squared_error(*pair) for pair in zip(painted, truths, strict=True)], -1)

        return in_groups(compare, self._coarse(state), *truths, floats_per_image=self.widest)

    def _coarse(self, state: LatentState) -> Float[Tensor, "n grid_h grid_w c"]:
        h, w = self.grid
        # Each block of the recurrent state produces its own channels: (block, h, w, c / blocks) -> (h, w, c).
        x = self.from_deter(state.deter).unflatten(-1, (self.blocks, h, w, -1))
        x = x.permute(0, 2, 3, 1, 4).flatten(3)
        return x + self.from_stoch(state.flat_stoch).unflatten(-1, (h, w, -1))

    def _convolve(self, x: Float[Tensor, "n grid_h grid_w c"]) -> Float[Tensor, "n h w channels"]:
        return self.cnn(self.norm(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).float().sigmoid()


class Decoder(nn.Module):
    """Predicts every observation from the model state."""

    def __init__(self, observation: dict[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__()
        self.image_channels = {key: observation[key].shape[2] for key in image_keys(observation)}
        self.vector_shapes = {key: observation[key].shape for key in vector_keys(observation)}
        if self.image_channels:
            self.image = ImageDecoder(image_shape(observation), config)
        if self.vector_shapes:
            feature = config.deter + config.stoch * config.classes
            self.mlp = MLP(feature, config.units, config.decoder_layers)
            widths = [int(torch.Size(shape).numel()) for shape in self.vector_shapes.values()]
            # A list in the order of `vector_shapes`, because `pose.x` and `values` are not valid module
            # names.
            self.vector = nn.ModuleList(Linear(config.units, width) for width in widths)

    def forward(self, state: LatentState) -> dict[str, Tensor]:
        """Predict (batch, time, ...) float32 observations: images in [0, 1], vectors in symlog space."""
        predictions: dict[str, Tensor] = {}
        if self.image_channels:
            image = self.image(state.flatten()).unflatten(0, state.deter.shape[:2])
            parts = image.split(list(self.image_channels.values()), -1)
            predictions.update(zip(self.image_channels, parts, strict=True))
        return predictions | self._vectors(state)

    def losses(
        self, state: LatentState, observation: dict[str, Tensor]
    ) -> dict[str, Float[Tensor, "batch time"]]:
        """Return squared errors from x / 255 (image) or symlog(x) (vector), summed over each observation."""
        losses: dict[str, Tensor] = {}
        if self.image_channels:
            truths = [observation[key].flatten(0, 1) for key in self.image_channels]
            errors = self.image.errors(state.flatten(), truths)
            parts = errors.unflatten(0, state.deter.shape[:2]).unbind(-1)
            losses.update(zip(self.image_channels, parts, strict=True))
        for key, prediction in self._vectors(state).items():
            target = symlog(observation[key].float()).view_as(prediction)
            losses[key] = (prediction - target).square().flatten(2).sum(-1)
        return losses

    def _vectors(self, state: LatentState) -> dict[str, Tensor]:
        if not self.vector_shapes:
            return {}
        hidden = self.mlp(state.feature)
        return {
            key: out(hidden).float().unflatten(-1, shape or (1,))
            for (key, shape), out in zip(self.vector_shapes.items(), self.vector, strict=True)
        }

    def to_raw(self, predictions: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert predictions to the ranges of the observations: images to uint8, vectors to float32."""
        return {
            key: (value * 255).round().clamp(0, 255).byte() if key in self.image_channels else symexp(value)
            for key, value in predictions.items()
        }


def squared_error(
    prediction: Float[Tensor, "n h w c"], truth: UInt8[Tensor, "n h w c"]
) -> Float[Tensor, "n"]:
    """Return the squared errors between images in [0, 1] and bytes / 255, summed over each image."""
    return (prediction - truth.float().div_(255)).square().flatten(1).sum(-1)
