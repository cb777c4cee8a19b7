"""Affine maps of a scan, with a single matrix product for each weight gradient.

A scan applies the same weights W at every step t:

    y_t = x_t W + b_t

Autograd would compute x_t' dL/dy_t at every step and add up T products. Their sum is a single product:

    dL/dW = sum_t x_t' dL/dy_t = X' D,    X = [x_1; ...; x_T],    D = [dL/dy_1; ...; dL/dy_T]

The arithmetic is the same, but one product over all T B rows replaces T products over B rows and T - 1
additions of the size of W.

The steps therefore use a copy of W without a graph, and keep their inputs x_t. `_Tap` creates the terms b_t
of all steps as one tensor, the tap. W is another argument of `_Tap`, only to receive its gradient there.

b_t is added to y_t, so the gradient of the tap is D. Autograd passes D to `_Tap` after the backward pass of
all steps, and `_Tap` returns X' D as the gradient of W. A bias is expanded to all steps and rows, so its
gradient is the sum of D.

The kept inputs are detached. Otherwise, the tap would own inputs whose graphs contain the tap, and this cycle
would never be freed.

A vector, such as a norm's scale, is also expanded to all steps and rows. Its gradient is then a single sum
instead of a sum in each step. Without gradients, there are no taps, and all steps share weights and vectors.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor


class Scan:
    """The affine maps of T steps with B rows each, and their vectors.

    Args:
        weights: (I, O), or (G, I, O) for G blocks.
        added: The term b of each map: a bias, (O,) or (G, O), or one term for each step and row, (T, B, O) or
            (T, B, G, O).
        vectors: Other parameters of the steps, (U,), such as scales of norms.
        steps: T.
        rows: B.
        dtype: Dtype of the products.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        added: Sequence[Tensor],
        vectors: Sequence[Tensor],
        steps: int,
        rows: int,
        dtype: torch.dtype,
    ) -> None:
        has_graph = torch.is_grad_enabled()
        self.weights = [(weight.detach() if has_graph else weight).to(dtype) for weight in weights]
        self._steps, self._rows, self._dtype = steps, rows, dtype
        self._inputs: list[list[Tensor]] = [[] for _ in weights]
        self._added = [self._divided(*each) for each in zip(weights, added, self._inputs, strict=True)]
        self._vectors = [
            x.expand(steps, rows, -1).unbind() if has_graph else repeat(x, steps) for x in vectors
        ]

    def _divided(self, weight: Tensor, term: Tensor, inputs: list[Tensor]) -> Iterable[Tensor]:
        """Return the term of each step for the product with a weight."""
        is_bias = term.dim() < weight.dim()
        if not torch.is_grad_enabled():
            term = term.to(self._dtype)
            return repeat(term, self._steps) if is_bias else term.unbind()
        lead = (self._steps, self._rows) if is_bias else ()
        tap: Any = _Tap.apply(weight, term, inputs, lead, self._dtype)
        # The gradient of `unbind` is a single stack, whereas indexing would need T full-size additions.
        return tap.unbind()

    def steps(self) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
        """Yield the terms and the vectors of each step."""
        return zip(zip(*self._added, strict=True), zip(*self._vectors, strict=True), strict=True)

    def keep(self, inputs: Sequence[Tensor]) -> None:
        """Keep the detached inputs of a step's products, (B, I) or (B, G, I), for the backward pass."""
        if torch.is_grad_enabled():
            for kept, x in zip(self._inputs, inputs, strict=True):
                kept.append(x)


class _Tap(torch.autograd.Function):
    """The terms of all steps for one product. Its backward pass also computes the weight's gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        added: Tensor,
        inputs: list[Tensor],
        lead: tuple[int, ...],
        dtype: torch.dtype,
    ) -> Tensor:
        """Expand `added` by the axes `lead`, (T, B) for a bias. `Scan.keep` fills `inputs` later."""
        ctx.dtypes, ctx.inputs, ctx.is_bias = (weight.dtype, added.dtype), inputs, bool(lead)
        return added.to(dtype).expand(*lead, *added.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Return the gradients of the weight, X' D, and of the terms."""
        weight_dtype, dtype = ctx.dtypes
        # One axis contains the rows of all steps: (T B, I) and (T B, O), or (T B, G, I) and (T B, G, O).
        d = gradients[0].flatten(0, 1)
        x = torch.stack(ctx.inputs).flatten(0, 1).to(d.dtype)
        # A dense layer's parameter is (O, I), so this form is contiguous where the gradient is accumulated.
        weight = (d.mT @ x).mT if x.dim() == 2 else x.permute(1, 2, 0) @ d.transpose(0, 1)
        term = d.sum(0, dtype=dtype) if ctx.is_bias else gradients[0].to(dtype)
        return weight.to(weight_dtype), term, None, None, None


def stack_steps(steps: list[Tensor]) -> Tensor:
    """Stack T tensors (B, ...) to (B, T, ...).

    The gradients of `torch.stack` would be T strided views, and each step would copy its own. Here, a single
    copy makes all of them contiguous.
    """
    if not torch.is_grad_enabled():
        return torch.stack(steps, 1)
    return _Stack.apply(*steps)  # type: ignore[return-value]


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *steps: Tensor) -> Tensor:
        return torch.stack(steps, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients[0].transpose(0, 1).contiguous().unbind()
