"""Building blocks shared by every network: initialisers, norm, linear, block-diagonal linear, MLP."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

TRUNCATED_STD = 0.87962566  # standard deviation of a unit normal truncated at +-2
_FLOATS_IN_CACHE = 2**17
EPS = 1e-4  # inside the norm's root; embodied/jax/nets.py: Norm

_META_STANDS_FOR = ContextVar("meta_stands_for", default="cpu")


def runs_on_cpu(x: Tensor) -> bool:
    """Return whether the CPU computes with `x` or, on device `meta`, would: it has its own fast forms."""
    kind = x.device.type
    return (_META_STANDS_FOR.get() if kind == "meta" else kind) == "cpu"


@contextmanager
def meta_stands_for(kind: str) -> Iterator[None]:
    """Inside the block, tensors of device `meta` take the forms of this kind of device."""
    token = _META_STANDS_FOR.set(kind)
    try:
        yield
    finally:
        _META_STANDS_FOR.reset(token)


def full_precision(x: Tensor) -> torch.autocast:
    """Return a block in which products are not cast to a shorter format; on `meta` that is the CPU's."""
    kind = x.device.type
    return torch.autocast("cpu" if kind == "meta" else kind, enabled=False)


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
        """Normalise in float32 and apply SiLU, on a GPU in the dtype of x."""
        if runs_on_cpu(x):
            return _NormSiLU.apply(x, self.scale)  # type: ignore[return-value]
        return F.silu(F.rms_norm(x.float(), self.scale.shape, self.scale, EPS).to(x.dtype))


def _reciprocal_rms(x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    eps = torch.full((), EPS, device=x.device)
    return torch.addcmul(eps, norm, norm, value=1.0 / x.shape[-1]).rsqrt_()


def _scaled_silu(x: Tensor, reciprocal: Tensor, scale: Tensor) -> Tensor:
    return F.silu((x * reciprocal).mul_(scale), inplace=True)


class _NormSiLU(torch.autograd.Function):
    """The gradient of y = silu(n s), where n = x r and r = 1 / sqrt(mean(x^2) + eps).

        ds = sum over rows of n dz,    dx = r (s dz - n mean(n s dz)),    dz = silu'(n s) dy

    The mean runs over the last axis. Torch's operators would keep four tensors of x's size for the backward
    pass and read and write a dozen; this keeps the input and a number for each row. All is float32, but for
    x, y and their gradients, which may be bfloat16.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        """Keep the input, the scale and the reciprocal root mean square of each row."""
        if x.dtype == torch.float32:
            reciprocal = _reciprocal_rms(x)
            y = _scaled_silu(x, reciprocal, scale)
        else:
            # Contiguous: of another layout the rows would be copies, and their results lost.
            y, reciprocal = x.new_empty(x.shape), scale.new_empty(*x.shape[:-1], 1)
            for rows, factor, result in _rows_in_cache(x, reciprocal, y):
                wide = rows.float()
                factor.copy_(_reciprocal_rms(wide))
                result.copy_(_scaled_silu(wide, factor, scale))
        ctx.save_for_backward(x, scale, reciprocal)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of input and scale."""
        x, scale, reciprocal = ctx.saved_tensors
        gradient, scale_gradient = x.new_empty(x.shape), torch.zeros_like(scale)
        for rows, factor, received, found in _rows_in_cache(x, reciprocal, gradients[0], gradient):
            normalised = rows.float() * factor
            wide = found if x.dtype == torch.float32 else torch.empty_like(normalised)
            torch.ops.aten.silu_backward(received.float(), normalised * scale, grad_input=wide)
            product = wide * normalised
            scale_gradient += product.sum(0)
            mean = torch.mv(product, scale / x.shape[-1]).unsqueeze(-1)
            wide.mul_(scale).addcmul_(normalised, mean, value=-1.0).mul_(factor)
            found.copy_(wide)  # nothing to do in float32: it is the same tensor
        return gradient, scale_gradient


def _rows_in_cache(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield rows of the last axis, as many at a time as stay in the processor's cache between operators."""
    rows = max(1, _FLOATS_IN_CACHE // tensors[0].shape[-1])
    # A list: from a generator Python makes tuples that pile up in its free lists, and look like a leak.
    return zip(*[tensor.reshape(-1, tensor.shape[-1]).split(rows) for tensor in tensors], strict=True)


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

    The initial standard deviation is 1 / sqrt(in_features), of *all* blocks together, as in the reference.
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
