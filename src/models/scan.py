"""Affine maps of a scan, with a single matrix product for each weight gradient.

A scan applies the same weights W at every step t:

    y_t = x_t W + b_t

Autograd would compute x_t' dL/dy_t at every step and add up T products. Their sum is a single product:

    dL/dW = sum_t x_t' dL/dy_t = X' D,    X = [x_1; ...; x_T],    D = [dL/dy_1; ...; dL/dy_T]

The arithmetic is the same, but one product over all T B rows replaces T products over B rows and T - 1
additions of the size of W.

The steps therefore use W without its gradient and keep their inputs x_t. The terms b_t of all steps form one
tensor, the tap. As b_t is added to y_t, the gradient of the tap is D. It is complete once autograd has passed
through all steps. The kept inputs are detached, because their graphs contain the tap and would never be
freed. `_Tap` then returns X' D as the gradient of W. A bias is a tap with equal terms, and its gradient is
the sum of D.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

_TIME = -3
"""Axis of the steps. The axes of rows and numbers follow."""


class Scan:
    """The affine maps and norm scales for T steps with B rows each.

    Args:
        weights: (I, O), or (G, I, O) for G blocks.
        added: The term b of each map: a bias, (O,) or (G, 1, O), or one term for each step and row, (T, B, O)
            or (G, T, B, O).
        scales: Scales of norms, (U,).
        steps: T.
        rows: B.
        dtype: Dtype of the products.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        added: Sequence[Tensor],
        scales: Sequence[Tensor],
        steps: int,
        rows: int,
        dtype: torch.dtype,
    ) -> None:
        has_graph = torch.is_grad_enabled()
        self.weights = [(weight.detach() if has_graph else weight).to(dtype) for weight in weights]
        self._steps, self._rows, self._dtype = steps, rows, dtype
        self._inputs: list[list[Tensor]] = [[] for _ in weights]
        self._added = [self._divided(*each) for each in zip(weights, added, self._inputs, strict=True)]
        self._scales = [x.expand(steps, -1).unbind() if has_graph else repeat(x, steps) for x in scales]

    def _divided(self, weight: Tensor, term: Tensor, inputs: list[Tensor]) -> Iterable[Tensor]:
        """Return the term of each step for the product with a weight."""
        is_bias = term.dim() <= weight.dim()
        if not torch.is_grad_enabled():
            term = term.to(self._dtype)
            return repeat(term, self._steps) if is_bias else term.unbind(_TIME)
        if is_bias and term.dim() > 1:
            term = term.unsqueeze(_TIME)
        shape = (*weight.shape[:-2], self._steps, self._rows, weight.shape[-1])
        tap: Any = _Tap.apply(weight, term, inputs, shape, self._dtype)
        # The gradient of `unbind` is a single stack, whereas indexing would need T full-size additions.
        return tap.unbind(_TIME)

    def steps(self) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
        """Yield the terms and the scales of each step."""
        return zip(zip(*self._added, strict=True), zip(*self._scales, strict=True), strict=True)

    def keep(self, inputs: Sequence[Tensor]) -> None:
        """Keep the detached inputs of a step's products, (B, ...), for the backward pass."""
        if torch.is_grad_enabled():
            for kept, x, weight in zip(self._inputs, inputs, self.weights, strict=True):
                is_dense = weight.dim() == 2
                kept.append(x if is_dense else x.view(len(x), -1, weight.shape[-2]).transpose(0, 1))


class _Tap(torch.autograd.Function):
    """The terms of all steps for one product. Their gradient and the inputs give the weight's gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        added: Tensor,
        inputs: list[Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ) -> Tensor:
        """Expand `added` to all steps and rows. The steps append to `inputs` later."""
        ctx.weight_dtype, ctx.form, ctx.inputs = weight.dtype, (added.shape, added.dtype), inputs
        return added.to(dtype).expand(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Return the gradients of the weight, X' D, and of the terms."""
        # One axis contains the rows of all steps: (T B, I) and (T B, O), or (G, T B, I) and (G, T B, O).
        x, d = (y.flatten(_TIME, -2) for y in (torch.stack(ctx.inputs, _TIME), gradients[0]))
        x = x.to(d.dtype)
        # A dense layer's parameter is (O, I), so this form is contiguous where the gradient is accumulated.
        weight = (d.mT @ x).mT if x.dim() == 2 else x.mT @ d
        shape, dtype = ctx.form
        return weight.to(ctx.weight_dtype), _sum_to(gradients[0], shape, dtype), None, None, None


def _sum_to(gradient: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Sum the gradient of an expanded tensor over the expanded axes, and convert it to the dtype."""
    first = gradient.dim() - len(shape)
    axes = [*range(first), *(first + axis for axis, size in enumerate(shape) if size == 1)]
    return gradient.sum(axes, dtype=dtype).view(shape) if axes else gradient.to(dtype)
