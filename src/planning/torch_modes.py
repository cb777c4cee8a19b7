"""Modes of torch that show what an update would hold on a device, without the device or the memory."""

import weakref
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# torch.amp's list for CUDA, as far as the networks use it.
_PRODUCTS = (torch.einsum, torch.bmm, torch.baddbmm, torch.mm, torch.addmm, torch.matmul)
_LOW_PRECISION = {F.linear, F.conv2d, *_PRODUCTS}

# Its result shares the argument's storage, which its schema does not say.
_SHARES_STORAGE = {torch.ops.aten._unsafe_view.default}


class _Mode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import its compiler, 40 MB, only to keep it away from `__torch_dispatch__`.
        return False


class LiveBytes(_Mode):
    """Counts the storages, real or of the `meta` device, that operators return in the `with` block.

    Each is counted once, however many tensors show it, under the label that was set at its birth, until its
    death inside or outside of the block. One that was there before the block is counted from the first
    operator that returns it, or from `count`. No storage is kept alive. What a kernel allocates for itself
    and frees before it returns is not seen. Sizes are rounded up to a multiple of `granularity`, as
    allocators do (CUDA: 512 bytes). Cost: about 3 us an operator.

    >>> with LiveBytes() as bytes_:
    ...     a = torch.zeros(1000)
    ...     b = a + a.exp()
    >>> bytes_.live, bytes_.peak
    (8000, 12000)
    """

    def __init__(self, granularity: int = 1) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        """Most bytes that lived at once since the beginning or `reset_peak`."""
        self.label = ""
        """What storages born from now on are counted as."""
        self.live_by_label: dict[str, int] = {}
        self.peak_by_label: dict[str, int] = {}
        self.operators = 0
        self._granularity = granularity
        self._storages: dict[int, tuple[weakref.ref, int, str]] = {}  # a reference, bytes, label

    def count(self, tensors: Iterable[Tensor], label: str | None = None) -> None:
        """Count the storages of tensors that were made before, or give those counted another label."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            address = storage._cdata
            if address not in self._storages:
                nbytes = -(-storage.nbytes() // self._granularity) * self._granularity
                reference = weakref.ref(storage, partial(self._forget, address))
                born_as = self.label if label is None else label
                self._storages[address] = reference, nbytes, born_as
                self._add(born_as, nbytes)
            elif label is not None:
                reference, nbytes, before = self._storages[address]
                self._storages[address] = reference, nbytes, label
                self._add(before, -nbytes)
                self._add(label, nbytes)

    def reset_peak(self) -> None:
        """Let the peak be what lives now."""
        self.peak, self.peak_by_label = self.live, dict(self.live_by_label)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count what it returns."""
        result = func(*args, **(kwargs or {}))
        self.operators += func.namespace != "profiler"  # labels for a profiler leave no node in a graph
        parts = [result] if isinstance(result, Tensor) else tree_leaves(result)
        self.count(part for part in parts if isinstance(part, Tensor))
        return result

    def _add(self, label: str, nbytes: int) -> None:
        self.live += nbytes
        self.live_by_label[label] = self.live_by_label.get(label, 0) + nbytes
        if self.live > self.peak:
            self.peak, self.peak_by_label = self.live, dict(self.live_by_label)

    def _forget(self, address: int, _: object) -> None:
        _, nbytes, label = self._storages.pop(address)
        self._add(label, -nbytes)


class MetaShapes(_Mode):
    """Answers repeated operators of the `meta` device from a table of torch's own answers.

    torch works out shapes of this device in Python, 0.1 ms to 4 ms a call, and a recurrent network makes the
    same calls at every step. Here a repeated operator takes 12 us, one in place 5 us. The results have the
    shapes, strides and dtypes that torch gives. Views, which share storage, and other devices are passed on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._table: dict[Any, Callable[[], Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what the operator returns, from the table where it is there."""
        kwargs = kwargs or {}
        kind = _kind(func)
        if kind == "other":
            return func(*args, **kwargs)
        if kind == "in place" and _is_meta(args[0]):
            return args[0] if func._schema.returns else None
        key = (func, _key(args), _key(tuple(kwargs.items())))
        if key not in self._table:
            result = func(*args, **kwargs)
            if _is_meta(result):
                self._table[key] = _maker(result)
            return result
        return self._table[key]()


@cache
def _kind(func: Any) -> str:
    """Return "new" for an operator whose results are new tensors, "in place", or "other"."""
    schema = func._schema
    if not schema.is_mutable and not any(item.alias_info for item in schema.returns):
        return "other" if func in _SHARES_STORAGE else "new"
    is_inplace = schema.name.endswith("_") and not func.is_view and len(schema.returns) <= 1
    return "in place" if is_inplace and "resize" not in schema.name else "other"


def _is_meta(value: Any) -> bool:
    """Return whether every tensor of a result is of the meta device, and there is one."""
    parts = [part for part in tree_leaves(value) if part is not None]
    return bool(parts) and all(isinstance(part, Tensor) and part.device.type == "meta" for part in parts)


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device.type
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    return type(value), value  # 1, 1.0 and True are equal, and give different dtypes


def _maker(result: Any) -> Callable[[], Any]:
    """Return a function that makes a result of the same shapes, strides and dtypes."""
    if isinstance(result, Tensor):
        like = partial(torch.empty_strided, dtype=result.dtype, device="meta")
        return partial(like, result.shape, result.stride())
    if result is None:
        return lambda: None
    kind, makers = type(result), list(map(_maker, result))
    return lambda: kind(make() for make in makers)


class DeviceForward(TorchFunctionMode):
    """One autocast region of a forward pass on the `meta` device, as a real device runs it.

    Two things matter for what is saved for the backward pass, and torch does neither on `meta`. Autocast
    casts the inputs of matrix products and convolutions to `dtype` and keeps the casts; a weight is cast once
    in each region, but a part of a weight (the RSSM splits some) at every use. And CUDA's `rms_norm` is one
    kernel, which saves its input and one number a row, where torch's own form saves three tensors. Workspace
    is not seen, and other operators of autocast's lists keep the dtype of their inputs.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._casts: dict[int, Tensor] = {}
        # Does nothing to tensors of `meta`, but is what `full_precision` switches off.
        self._autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype is not torch.float32)

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch as a real device would."""
        kwargs = kwargs or {}
        if func is F.rms_norm:
            return _rms_norm(*args, **kwargs)
        if func in _LOW_PRECISION and torch.is_autocast_enabled("cpu"):
            args = tuple(map(self._cast, args))
            kwargs = {name: self._cast(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def __enter__(self) -> Self:
        """Begin the region."""
        self._autocast.__enter__()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        """End the region; its casts of weights live on only where a graph holds them."""
        self._casts.clear()
        self._autocast.__exit__(*exception)
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
