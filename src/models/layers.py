"""Building blocks of all networks: initializer, norm, linear, block-diagonal linear and MLP."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

# Standard deviation of a unit normal distribution truncated at +-2.
TRUNCATED_STD = 0.87962566
_FLOATS_IN_CACHE = 2**17
# Constant that is added to the mean square under the norm's root (Norm in embodied/jax/nets.py).
EPS = 1e-4

_META_STANDS_FOR = ContextVar("meta_stands_for", default="cpu")


def runs_on_cpu(x: Tensor) -> bool:
    """Return whether to use the CPU's fast paths for `x`. For `meta` tensors, see `meta_stands_for`."""
    kind = x.device.type
    return (_META_STANDS_FOR.get() if kind == "meta" else kind) == "cpu"


@contextmanager
def meta_stands_for(kind: str) -> Iterator[None]:
    """Treat tensors on the `meta` device as tensors on this type of device inside the block."""
    token = _META_STANDS_FOR.set(kind)
    try:
        yield
    finally:
        _META_STANDS_FOR.reset(token)


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with `x` under autocast (the CPU's for `meta`)."""
    kind = "cpu" if x.device.type == "meta" else x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def full_precision(x: Tensor) -> torch.autocast:
    """Return a context that disables autocast on the device of `x` (on the CPU for `meta`)."""
    kind = x.device.type
    return torch.autocast("cpu" if kind == "meta" else kind, enabled=False)


def truncated_normal_(weight: Tensor, fan_in: int, scale: float = 1.0) -> None:
    """Fill `weight` from a normal distribution truncated at two sigma, with std scale / sqrt(fan_in).

    Reference: `trunc_normal_in` in `embodied/jax/nets.py` of danijar/dreamerv3 at e3f0224.
    """
    sigma = scale / math.sqrt(fan_in) / TRUNCATED_STD
    if sigma == 0.0:
        nn.init.zeros_(weight)
    else:
        nn.init.trunc_normal_(weight, std=sigma, a=-2 * sigma, b=2 * sigma)


class NormSiLU(nn.Module):
    """RMSNorm over the last axis followed by SiLU: silu(x / sqrt(mean(x^2) + 1e-4) * scale)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        """Normalize in float32 and apply SiLU. A GPU applies SiLU in the dtype of x."""
        return norm_silu(x, self.scale)


def norm_silu(
    x: Float[Tensor, "*batch size"], scale: Float[Tensor, "*#rows size"]
) -> Float[Tensor, "*batch size"]:
    """Return `NormSiLU` of x for a given scale, or one scale for each row."""
    if not runs_on_cpu(x):
        shared = scale if scale.dim() == 1 else None
        y = F.rms_norm(x.float(), scale.shape[-1:], shared, EPS)
        return F.silu((y if shared is not None else y * scale).to(x.dtype))
    if torch.is_grad_enabled():
        return _NormSiLU.apply(x, scale)  # type: ignore[return-value]
    # This avoids the overhead of an autograd function (2 % of a policy step).
    return _norm_silu_on_cpu(x, scale)[0]


def _reciprocal_rms(x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    eps = torch.full((), EPS, device=x.device)
    return torch.addcmul(eps, norm, norm, value=1.0 / x.shape[-1]).rsqrt_()


def _scaled_silu(x: Tensor, reciprocal: Tensor, scale: Tensor) -> Tensor:
    return F.silu((x * reciprocal).mul_(scale), inplace=True)


def _norm_silu_on_cpu(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return `NormSiLU` of x and the reciprocal root mean square of each row."""
    if x.dtype == torch.float32 or scale.dim() > 1 or _fits_in_cache(x):
        wide = x.float()
        reciprocal = _reciprocal_rms(wide)
        return _scaled_silu(wide, reciprocal, scale).to(x.dtype), reciprocal
    # Both outputs must be contiguous. Otherwise the rows would be copies, and the results would be lost.
    y, reciprocal = x.new_empty(x.shape), scale.new_empty(*x.shape[:-1], 1)
    for rows, factor, result in _rows_in_cache(x, reciprocal, y):
        wide = rows.float()
        factor.copy_(_reciprocal_rms(wide))
        result.copy_(_scaled_silu(wide, factor, scale))
    return y, reciprocal


class _NormSiLU(torch.autograd.Function):
    """Computes y = silu(n s), where n = x r and r = 1 / sqrt(mean(x^2) + eps), with a manual gradient.

        ds = sum over rows of n dz,    dx = r (s dz - n mean(n s dz)),    dz = silu'(n s) dy

    The mean is over the last axis. Torch's operators would save four tensors of x's size for the backward
    pass and access a dozen. This function only saves the input and one number per row. All values are
    float32, except that x, y and their gradients may be bfloat16.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        """Return y. Save the input, the scale and the reciprocal root mean square of each row."""
        y, reciprocal = _norm_silu_on_cpu(x, scale)
        ctx.save_for_backward(x, scale, reciprocal)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of the input and the scale."""
        x, scale, reciprocal = ctx.saved_tensors
        if _fits_in_cache(x) or scale.dim() > 1:
            return _NormSiLU.of_rows(x, reciprocal, gradients[0], scale)
        gradient, scale_gradient = x.new_empty(x.shape), torch.zeros_like(scale)
        for rows, factor, received, found in _rows_in_cache(x, reciprocal, gradients[0], gradient):
            into = found if x.dtype == torch.float32 else None
            row_gradient, partial = _NormSiLU.of_rows(rows, factor, received, scale, into)
            # In float32, source and target are the same tensor, so the copy has no effect.
            found.copy_(row_gradient)
            scale_gradient += partial
        return gradient, scale_gradient

    @staticmethod
    def of_rows(
        x: Tensor, factor: Tensor, received: Tensor, scale: Tensor, into: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of a group of rows and of the scale. `into` receives the rows' in float32."""
        normalised = x.float() * factor
        wide = torch.empty_like(normalised) if into is None else into
        torch.ops.aten.silu_backward(received.float(), normalised * scale, grad_input=wide)
        product = wide * normalised
        # This is not a matrix product, because autocast would round it when a compiler traces this function.
        mean = (product * scale).mean(-1, keepdim=True)
        wide.mul_(scale).addcmul_(normalised, mean, value=-1.0).mul_(factor)
        return wide.to(x.dtype), product.sum_to_size(scale.shape)


def _fits_in_cache(x: Tensor) -> bool:
    return x.numel() <= _FLOATS_IN_CACHE


def _rows_in_cache(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield groups of rows small enough to stay in the processor's cache between operators."""
    rows = max(1, _FLOATS_IN_CACHE // tensors[0].shape[-1])
    # This unpacks a list, because a generator's tuples would stay in Python's free lists, like a leak.
    return zip(*[tensor.reshape(-1, tensor.shape[-1]).split(rows) for tensor in tensors], strict=True)


class Linear(nn.Linear):
    """Linear layer with a zero initial bias and truncated-normal weights of std outscale / sqrt(in)."""

    def __init__(self, in_features: int, out_features: int, outscale: float = 1.0) -> None:
        self.outscale = outscale
        super().__init__(in_features, out_features)

    def reset_parameters(self) -> None:
        """Initialize the parameters. The base class calls this."""
        truncated_normal_(self.weight, self.in_features, self.outscale)
        nn.init.zeros_(self.bias)


@contextmanager
def converted_weights(*modules: nn.Module) -> Iterator[None]:
    """Convert linear layers to the dtype of products once for all calls inside the block, without gradients.

    Compiled functions would otherwise convert them in every call, because autocast has no cache there.
    """
    layers = [layer for module in modules for layer in module.modules() if isinstance(layer, nn.Linear)]
    kept = [(layer, *named) for layer in layers for named in layer.named_parameters(recurse=False)]
    try:
        for layer, name, parameter in kept:
            converted = parameter.detach().to(product_dtype(parameter))
            setattr(layer, name, nn.Parameter(converted, requires_grad=False))
        yield
    finally:
        for layer, name, parameter in kept:
            setattr(layer, name, parameter)


class BlockLinear(nn.Module):
    """Parallel linear maps. As in the reference, the initial std is 1 / sqrt(in_features of *all* blocks)."""

    def __init__(self, in_features: int, out_features: int, blocks: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(blocks, in_features // blocks, out_features // blocks))
        self.bias = nn.Parameter(torch.zeros(out_features))
        truncated_normal_(self.weight, in_features)

    def forward(self, x: Float[Tensor, "batch inputs"]) -> Float[Tensor, "batch outputs"]:
        """Map each block of the last axis separately."""
        blocks, width, _ = self.weight.shape
        y = torch.bmm(x.reshape(-1, blocks, width).transpose(0, 1), self.weight)
        return y.transpose(0, 1).flatten(1) + self.bias.to(y.dtype)


class MLP(nn.Sequential):
    """A stack of linear, RMSNorm and SiLU layers. Parameter names count all three as modules."""

    def __init__(self, in_features: int, units: int, layers: int) -> None:
        super().__init__()
        for index in range(layers):
            self.add_module(f"{3 * index}", Linear(in_features if index == 0 else units, units))
            self.add_module(f"{3 * index + 1}", NormSiLU(units))
