"""Stages of the image encoder and decoder. Each halves or doubles the resolution with a 5x5 convolution.

Tensors are (N, C, H, W) in channels_last format, so that the norm over channels reads contiguous memory.
"""

from collections import OrderedDict
from collections.abc import Callable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import NormSiLU, runs_on_cpu, truncated_normal_

KERNEL = 5
STAGES = 4
# Channels of each stage as multiples of `model.depth`, from the finest stage to the coarsest.
CHANNELS = (2, 3, 4, 4)

# A kernel has five taps, and each tap reads one of three adjacent input pixels: previous, same or next. The
# assignment differs between even and odd output pixels. The axes are (output parity, input pixel, tap).
NEAREST = (
    ((1, 1, 0, 0, 0), (0, 0, 1, 1, 0), (0, 0, 0, 0, 1)),
    ((1, 0, 0, 0, 0), (0, 1, 1, 0, 0), (0, 0, 0, 1, 1)),
)
TRANSPOSED = (
    ((0, 0, 0, 1, 0), (0, 1, 0, 0, 0), (0, 0, 0, 0, 0)),
    ((0, 0, 0, 0, 1), (0, 0, 1, 0, 0), (1, 0, 0, 0, 0)),
)

GROUP_BYTES = 16_000_000


class ChannelNormSiLU(NormSiLU):
    """RMSNorm over the channels of an image, followed by SiLU."""

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """Normalize each pixel's channels and apply SiLU."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Downsample(nn.Module):
    """Halves the resolution with a stride-1 convolution and 2x2 max-pooling, or a stride-2 convolution."""

    def __init__(self, in_channels: int, out_channels: int, strided: bool) -> None:
        super().__init__()
        self.strided = strided
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, KERNEL, KERNEL))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        truncated_normal_(self.weight, in_channels * KERNEL**2)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n out h2 w2"]:
        """Convolve and halve the resolution."""
        if self.strided:
            # For an even size and stride 2, "same" padding adds one pixel before and two pixels after.
            return F.conv2d(F.pad(x, (1, 2, 1, 2)), self.weight, self.bias, stride=2)
        return F.max_pool2d(F.conv2d(x, self.weight, self.bias, padding=KERNEL // 2), 2)


class Upsample(nn.Module):
    """Doubles the resolution by nearest-neighbor upsampling and convolution, or by transposed convolution.

    Neither form materializes the upsampled image. Each tap of the 5x5 kernel reads one of 3x3 input pixels,
    depending only on the parity of the output's row and column. Four 3x3 kernels of summed taps therefore
    convolve the small image. The first form needs 9/25 of the work. The second form needs 36/25 of the work,
    but less time.

    `weight` is (out, in, 5, 5) for the first form and (in, out, 5, 5) for the second, like torch's weights.
    """

    taps: Tensor

    def __init__(self, in_channels: int, out_channels: int, strided: bool) -> None:
        super().__init__()
        self.strided = strided
        channels = (in_channels, out_channels) if strided else (out_channels, in_channels)
        self.weight = nn.Parameter(torch.empty(*channels, KERNEL, KERNEL))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        taps = torch.tensor(TRANSPOSED if strided else NEAREST, dtype=torch.float32)
        self.register_buffer("taps", taps, persistent=False)
        truncated_normal_(self.weight, in_channels * KERNEL**2)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n out h2 w2"]:
        """Double the resolution and convolve."""
        n, _, h, w = x.shape
        y = F.conv2d(x, self.small_kernels(), self.bias.repeat(4), padding=1)
        # Interleave (row parity, column parity, channel) of each small pixel to (row, column, channel).
        y = y.permute(0, 2, 3, 1).unflatten(-1, (2, 2, -1)).permute(0, 1, 3, 2, 4, 5)
        return y.reshape(n, 2 * h, 2 * w, -1).permute(0, 3, 1, 2)

    def small_kernels(self) -> Float[Tensor, "four_out c 3 3"]:
        """Return one kernel for each (row parity, column parity, channel) of the output."""
        weight = self.weight.transpose(0, 1) if self.strided else self.weight
        kernels = torch.einsum("pak,qbl,oikl->pqoiab", self.taps, self.taps, weight)
        return kernels.flatten(0, 2).contiguous(memory_format=torch.channels_last)


def in_groups(
    function: Callable[..., Tensor], *images: Shaped[Tensor, "n ..."], floats_per_image: int
) -> Float[Tensor, "n ..."]:
    """Apply a per-image function to tensors of shape (N, ...). On a CPU, process a few images at a time.

    A group's tensors fit into the processor's cache and reuse heap memory. The operating system would map
    tensors above 32 MB at every update, and the page faults would take a quarter of the update's time.
    `floats_per_image` is the size of the largest tensor that the function creates for one image.
    """
    if not runs_on_cpu(images[0]):
        return function(*images)
    size = max(1, GROUP_BYTES // (4 * floats_per_image))
    parts = [function(*group) for group in zip(*(x.split(size) for x in images), strict=True)]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def channels_last(stages: list[nn.Module]) -> nn.Sequential:
    """Chain convolutions (with channels_last weights) and norms. Names count a norm's SiLU as a module."""
    names = (f"{3 * (index // 2) + index % 2}" for index in range(len(stages)))
    result = nn.Sequential(OrderedDict(zip(names, stages, strict=True)))
    # `Module.to(memory_format=...)` is equivalent, but torch does not annotate it.
    for parameter in result.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    return result
