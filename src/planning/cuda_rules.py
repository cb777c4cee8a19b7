"""What a CUDA device saves for the backward pass otherwise than a CPU, on the `meta` device.

Two differences matter. Autocast casts the inputs of matrix products and convolutions and keeps the casts; a
weight is cast once in each autocast region, but a part of a weight (the RSSM splits some) at every use. And
CUDA normalises in one kernel, which saves its input and one number a row, where a CPU composes the norm from
operators that save three tensors. Both are stated here, since torch does neither on `meta`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# torch.amp's list for CUDA, as far as the networks use it.
_LOW_PRECISION = {
    *(F.linear, F.conv2d, torch.einsum, torch.bmm, torch.baddbmm, torch.mm, torch.addmm, torch.matmul),
}


class CudaForward(TorchFunctionMode):
    """One autocast region of a forward pass, as CUDA runs it.

    Approximated: convolutions and products may take workspace that is not seen, other operators of autocast's
    lists than those above keep the dtype of their inputs.

    Args:
        dtype: Dtype of matrix products and convolutions; float32 casts nothing.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._casts: dict[int, Tensor] = {}

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch as CUDA would."""
        kwargs = kwargs or {}
        if func is F.rms_norm:
            return _rms_norm(*args, **kwargs)
        if func in _LOW_PRECISION and self._dtype is not torch.float32:
            args = tuple(map(self._cast, args))
            kwargs = {name: self._cast(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def __exit__(self, *exception: Any) -> None:
        """End the region: its casts of weights live on only where a graph holds them."""
        self._casts.clear()
        super().__exit__(*exception)

    def _cast(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype is not torch.float32:
            return value
        is_weight = value.requires_grad and value.is_leaf and not value._is_view()
        if not is_weight:
            return value.to(self._dtype)
        if id(value) not in self._casts:  # weights outlive the region: their ids are not reused
            self._casts[id(value)] = value.to(self._dtype)
        return self._casts[id(value)]


class _FusedNorm(torch.autograd.Function):
    """RMSNorm in one kernel each way: shapes and what is saved, no numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Save the input, the weight and the root mean square of each row."""
        rows = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, rows)
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients of the shapes of input and weight."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(weight)


def _rms_norm(x: Tensor, shape: Any, weight: Tensor, eps: float | None = None) -> Tensor:
    return _FusedNorm.apply(x.contiguous(), weight)  # type: ignore[return-value]
