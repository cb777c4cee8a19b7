"""RMSNorm and SiLU in one step, with the gradient written out.

Composed of torch's operators the pair keeps four tensors of its size for the backward pass (the input, its
normalised and its scaled form, the output) and reads and writes a dozen. Written out it keeps the input
and a number for each row, and recomputes the rest.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from .device import runs_on_cpu

EPS = 1e-4  # inside the root; embodied/jax/nets.py: Norm


def norm_silu(x: Float[Tensor, "*batch size"], scale: Float[Tensor, "size"]) -> Float[Tensor, "*batch size"]:
    """Return silu(x / sqrt(mean(x^2) + 1e-4) * scale) over the last axis, in the dtype of x."""
    if x.dtype == torch.float32 and runs_on_cpu(x):
        if torch.is_grad_enabled():
            return _NormSiLU.apply(x, scale)  # type: ignore[return-value]
        return _scaled_silu(x, _reciprocal_rms(x), scale)
    return F.silu(F.rms_norm(x.float(), scale.shape, scale, EPS).to(x.dtype))


def _reciprocal_rms(x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    eps = torch.full((), EPS, device=x.device)
    return torch.addcmul(eps, norm, norm, value=1.0 / x.shape[-1]).rsqrt_()


def _scaled_silu(x: Tensor, reciprocal: Tensor, scale: Tensor) -> Tensor:
    return F.silu((x * reciprocal).mul_(scale), inplace=True)


class _NormSiLU(torch.autograd.Function):
    """The gradient of y = silu(n s), where n = x r and r = 1 / sqrt(mean(x^2) + eps).

        ds = sum over rows of n dz,    dx = r (s dz - n mean(n s dz)),    dz = silu'(n s) dy

    The mean runs over the last axis; it is there because r depends on x.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        """Keep the input, the scale and the reciprocal root mean square of each row."""
        reciprocal = _reciprocal_rms(x)
        ctx.save_for_backward(x, scale, reciprocal)
        return _scaled_silu(x, reciprocal, scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of input and scale."""
        x, scale, reciprocal = ctx.saved_tensors
        normalised = x * reciprocal
        gradient = torch.ops.aten.silu_backward(gradients[0], normalised * scale)
        product = (gradient * normalised).reshape(-1, x.shape[-1])
        scale_gradient = product.sum(0)
        mean = torch.mv(product, scale / x.shape[-1]).view_as(reciprocal)
        gradient.mul_(scale).addcmul_(normalised, mean, value=-1.0).mul_(reciprocal)
        return gradient, scale_gradient
