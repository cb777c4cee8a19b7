"""Stages of the image encoder and decoder: each halves or doubles the resolution with a 5x5 convolution.

Tensors are (N, C, H, W) in memory format channels_last, so that the norm over channels reads contiguous
memory.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import RMSNorm, truncated_normal_

KERNEL = 5
STAGES = 4
CHANNELS = (2, 3, 4, 4)  # times model.depth, from the finest stage to the coarsest


class ChannelNorm(RMSNorm):
    """RMSNorm over the channels of an image."""

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """Normalise each pixel's channels."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Downsample(nn.Module):
    """Half the resolution: stride-1 convolution and 2x2 max-pooling, or one stride-2 convolution."""

    def __init__(self, in_channels: int, out_channels: int, strided: bool) -> None:
        super().__init__()
        self.strided = strided
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, KERNEL, KERNEL))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        truncated_normal_(self.weight, in_channels * KERNEL**2)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n out h2 w2"]:
        """Convolve and halve."""
        if self.strided:
            # "Same" padding of an even size at stride 2 is one pixel before and two after.
            return F.conv2d(F.pad(x, (1, 2, 1, 2)), self.weight, self.bias, stride=2)
        return F.max_pool2d(F.conv2d(x, self.weight, self.bias, padding=KERNEL // 2), 2)


class Upsample(nn.Module):
    """Double the resolution: nearest-neighbour and stride-1 convolution, or one transposed convolution.

    `weight` is (out, in, 5, 5) for the first form and (in, out, 5, 5) for the second, as torch has them.
    """

    def __init__(self, in_channels: int, out_channels: int, strided: bool) -> None:
        super().__init__()
        self.strided = strided
        channels = (in_channels, out_channels) if strided else (out_channels, in_channels)
        self.weight = nn.Parameter(torch.empty(*channels, KERNEL, KERNEL))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        truncated_normal_(self.weight, in_channels * KERNEL**2)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n out h2 w2"]:
        """Double and convolve."""
        if self.strided:
            # Inputs sit at the odd outputs; the last row and column of the full result fall outside.
            return F.conv_transpose2d(x, self.weight, self.bias, stride=2, padding=1)[..., :-1, :-1]
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        return F.conv2d(x, self.weight, self.bias, padding=KERNEL // 2)


def channels_last(stages: nn.Sequential) -> nn.Sequential:
    """Lay out the convolutions' weights like the images, in place.

    It is `Module.to(memory_format=...)`, which torch does not annotate.
    """
    for parameter in stages.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    return stages
