"""An encoder of image patches.

reverie-train experiment=dreamer_catch model.encoder=patch_encoder:PatchEncoder
"""

import torch
from torch import Tensor, nn

from reverie import ArraySpec, ModelConfig

PATCH = 8


class PatchEncoder(nn.Module):
    """Embeds patches of 8 x 8 pixels, and mixes all of them in one layer."""

    def __init__(self, observation: dict[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__()
        self.keys = sorted(key for key, spec in observation.items() if spec.is_image)
        height, width, _ = observation[self.keys[0]].shape
        channels = sum(observation[key].shape[2] for key in self.keys)
        self.patches = nn.Conv2d(channels, config.depth, PATCH, stride=PATCH)
        numbers = (height // PATCH) * (width // PATCH) * config.depth
        self.mix = nn.Sequential(nn.LayerNorm(numbers), nn.Linear(numbers, config.units), nn.SiLU())
        self.size = config.units

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Return tokens (B, T, size) of uint8 images (B, T, H, W, C)."""
        image = torch.cat([observation[key] for key in self.keys], -1)
        pixels = image.flatten(0, 1).permute(0, 3, 1, 2).float() / 255 - 0.5
        return self.mix(self.patches(pixels).flatten(1)).unflatten(0, image.shape[:2])
