"""Building blocks shared by every network: initialisers, norm, linear, block-diagonal linear, MLP."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .norm_silu import norm_silu

TRUNCATED_STD = 0.87962566  # standard deviation of a unit normal truncated at +-2


def truncated_normal_(weight: Tensor, fan_in: int, scale: float = 1.0) -> None:
    """Fill `weight` with a normal truncated at two sigma whose standard deviation is scale / sqrt(fan_in).

    Reference: `trunc_normal_in` in `embodied/jax/nets.py` of danijar/dreamerv3 at e3f0224.
    """
    sigma = scale / math.sqrt(fan_in) / TRUNCATED_STD
    if sigma == 0.0:
        nn.init.zeros_(weight)
    else:
        nn.init.trunc_normal_(weight, std=sigma, a=-2 * sigma, b=2 * sigma)


class NormSiLU(nn.Module):
    """silu(x / sqrt(mean(x^2) + 1e-4) * scale) over the last axis: RMSNorm, then SiLU."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        """Normalise in float32 and apply SiLU in the dtype of x."""
        return norm_silu(x, self.scale)


class Linear(nn.Linear):
    """Linear with bias, truncated-normal kernel of standard deviation outscale / sqrt(in), zero bias."""

    def __init__(self, in_features: int, out_features: int, outscale: float = 1.0) -> None:
        self.outscale = outscale
        super().__init__(in_features, out_features)

    def reset_parameters(self) -> None:
        """Initialise; called by the base class."""
        truncated_normal_(self.weight, self.in_features, self.outscale)
        nn.init.zeros_(self.bias)


class BlockLinear(nn.Module):
    """`blocks` independent linear maps in parallel.

    The initial standard deviation is 1 / sqrt(in_features) with the width of *all* blocks together, as in the
    reference, so that outputs are sqrt(blocks) smaller than with the fan-in of one block.
    """

    def __init__(self, in_features: int, out_features: int, blocks: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(blocks, in_features // blocks, out_features // blocks))
        self.bias = nn.Parameter(torch.zeros(out_features))
        truncated_normal_(self.weight, in_features)

    def forward(self, x: Float[Tensor, "batch inputs"]) -> Float[Tensor, "batch outputs"]:
        """Map each block of the last axis on its own."""
        blocks, width, _ = self.weight.shape
        y = torch.bmm(x.reshape(-1, blocks, width).transpose(0, 1), self.weight)
        return y.transpose(0, 1).flatten(1) + self.bias.to(y.dtype)


class MLP(nn.Sequential):
    """`layers` times linear, RMSNorm, SiLU; parameters are named as if each of the three were a module."""

    def __init__(self, in_features: int, units: int, layers: int) -> None:
        super().__init__()
        for index in range(layers):
            self.add_module(f"{3 * index}", Linear(in_features if index == 0 else units, units))
            self.add_module(f"{3 * index + 1}", NormSiLU(units))
