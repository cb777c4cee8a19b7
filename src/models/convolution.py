"""Stages of the image encoder and decoder. Each halves or doubles the resolution with a 5x5 convolution.

Tensors are (N, C, H, W) in channels_last format, so that the norm over channels reads contiguous memory.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import NormSiLU, runs_on_cpu, truncated_normal_

KERNEL = 5
STAGES = 4
# Channels of each stage as multiples of `model.depth`, from the finest stage to the coarsest.
CHANNELS = (2, 3, 4, 4)
PARITIES = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Row and column of each pixel in a block of 2x2 pixels."""

_ALIGNED = 8
"""cuDNN's tensor-core kernels require multiples of this many channels."""

GROUP_BYTES = 16_000_000


class ChannelNormSiLU(NormSiLU):
    """RMSNorm over the channels of an image, followed by SiLU."""

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """Normalize each pixel's channels and apply SiLU."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Downsample(nn.Module):
    """Halves the resolution with a stride-1 convolution and 2x2 max-pooling, or a stride-2 convolution.

    A GPU convolves blocks of 2x2 pixels (see `block_kernels`). The four pixels of an output block are then
    four groups of channels, and their maximum is a pooled pixel. A stride-2 convolution computes only one of
    the four. This needs 36/25 of the work but less time, because three input channels become twelve, and all
    others four times as many.
    """

    def __init__(self, in_channels: int, out_channels: int, strided: bool) -> None:
        super().__init__()
        self.strided = strided
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, KERNEL, KERNEL))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        truncated_normal_(self.weight, in_channels * KERNEL**2)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n out h2 w2"]:
        """Convolve and halve the resolution."""
        if not runs_on_cpu(x):
            return self._of_blocks(x)
        if self.strided:
            # For an even size and stride 2, "same" padding adds one pixel before and two pixels after.
            return F.conv2d(F.pad(x, (1, 2, 1, 2)), self.weight, self.bias, stride=2)
        return F.max_pool2d(F.conv2d(x, self.weight, self.bias, padding=KERNEL // 2), 2)

    def _of_blocks(self, x: Tensor) -> Tensor:
        # (row, column, row in block, column in block, channel)
        blocks = x.permute(0, 2, 3, 1).unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).transpose(2, 3)
        kernels = block_kernels(self.weight, ((1, 1),) if self.strided else PARITIES)
        # From (parity, out, in, row, row in block, column, column in block)
        # to (parity and out, row in block and column in block and in, row, column).
        kernels = kernels.permute(0, 1, 4, 6, 2, 3, 5).flatten(2, 4).flatten(0, 1)
        y: Any = convolve_aligned(blocks.flatten(3).permute(0, 3, 1, 2), kernels).permute(0, 2, 3, 1)
        if not self.strided:
            y = _Largest.apply(y.unflatten(-1, (len(PARITIES), -1)))
        # Adding the bias to the maximum is equivalent, and its gradient reads a quarter of the memory.
        return (y + self.bias.to(y.dtype)).permute(0, 3, 1, 2)


class _Largest(torch.autograd.Function):
    """The maximum over the last axis but one. As in max-pooling, the first of equal numbers has the gradient.

    The backward pass reads one byte per maximum instead of the input.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        largest, index = x.max(-2)
        ctx.save_for_backward(index.to(torch.uint8))
        return largest

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        [index] = ctx.saved_tensors
        places = torch.arange(len(PARITIES), dtype=torch.uint8, device=index.device).unsqueeze(-1)
        return torch.where(index.unsqueeze(-2) == places, gradients[0].unsqueeze(-2), 0.0)


class Upsample(nn.Module):
    """Doubles the resolution by nearest-neighbor upsampling and convolution, or by transposed convolution.

    Neither form materializes the upsampled image. Each tap of the 5x5 kernel reads one of 3x3 input pixels,
    depending only on the parity of the output's row and column. Four 3x3 kernels of summed taps therefore
    convolve the small image. The first form needs 9/25 of the work. The second form needs 36/25 of the work,
    but less time.

    `weight` is (out, in, 5, 5) for the first form and (in, out, 5, 5) for the second, like torch's weights.
    """

    def __init__(self, in_channels: int, out_channels: int, strided: bool) -> None:
        super().__init__()
        self.strided = strided
        channels = (in_channels, out_channels) if strided else (out_channels, in_channels)
        self.weight = nn.Parameter(torch.empty(*channels, KERNEL, KERNEL))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        truncated_normal_(self.weight, in_channels * KERNEL**2)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n out h2 w2"]:
        """Double the resolution and convolve."""
        (n, _, h, w), kernels, on_cpu = x.shape, self.small_kernels(), runs_on_cpu(x)
        y = F.conv2d(x, kernels, self.bias.repeat(4), padding=1) if on_cpu else convolve_aligned(x, kernels)
        # Interleave (row parity, column parity, channel) of each small pixel to (row, column, channel).
        y = y.permute(0, 2, 3, 1).unflatten(-1, (2, 2, -1)).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(n, 2 * h, 2 * w, -1)
        return (y if on_cpu else y + self.bias.to(y.dtype)).permute(0, 3, 1, 2)

    def small_kernels(self) -> Float[Tensor, "four_out c 3 3"]:
        """Return one kernel for each (row parity, column parity, channel) of the output."""
        if self.strided:
            # A pixel of the small image is one pixel of its block. All others are zero.
            [split] = block_kernels(self.weight.transpose(0, 1).flip(2, 3), ((0, 0),))
            kernels = torch.stack([split[:, :, :, 1 - p, :, 1 - q] for p, q in PARITIES])
        else:
            # All four pixels of a block are equal.
            kernels = block_kernels(self.weight, PARITIES).sum((4, 6))
        return kernels.flatten(0, 1).contiguous(memory_format=torch.channels_last)


def block_kernels(
    weight: Float[Tensor, "out c 5 5"], parities: Sequence[tuple[int, int]]
) -> Float[Tensor, "parities out c 3 2 3 2"]:
    """Return 5x5 kernels of pixels as 3x3 kernels of blocks of 2x2 pixels.

    Row 2i + p of the output reads rows 2i + p - 2 to 2i + p + 2, which are in blocks i - 1 to i + 1 of two
    rows. Tap k is row p + k of these six rows, and all other taps are zero. The same applies to columns.

    Args:
        weight: Kernels for a padding of 2.
        parities: The row and column p of each output pixel in its block.

    Returns:
        Axes: parity, out, in, block row, row in block, block column, column in block.
    """
    kernels = torch.stack([F.pad(weight, (q, 1 - q, p, 1 - p)) for p, q in parities])
    return kernels.unflatten(-1, (3, 2)).unflatten(-3, (3, 2))


def convolve_aligned(
    x: Float[Tensor, "n c h w"], weight: Float[Tensor, "out c 3 3"]
) -> Float[Tensor, "n out h w"]:
    """Convolve with stride 1 and "same" padding. Zero channels align the channels for tensor cores."""
    out, channels = weight.shape[:2]
    missing_out, missing = -out % _ALIGNED, -channels % _ALIGNED
    if missing_out or missing:
        weight = F.pad(weight, (0, 0, 0, 0, 0, missing, 0, missing_out))
    if missing:
        x = F.pad(x.permute(0, 2, 3, 1), (0, missing)).permute(0, 3, 1, 2)
    return F.conv2d(x, weight.contiguous(memory_format=torch.channels_last), padding=1)[:, :out]


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
