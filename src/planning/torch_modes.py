"""Torch modes that measure an update's memory on a device, without the device and without that memory."""

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

# The operators on torch.amp's CUDA list that the networks use.
_PRODUCTS = (torch.einsum, torch.bmm, torch.baddbmm, torch.mm, torch.addmm, torch.matmul)
_LOW_PRECISION = {F.linear, F.conv2d, *_PRODUCTS}

# The results of these operators share their argument's storage, but the schemas do not declare this.
_SHARES_STORAGE = {torch.ops.aten._unsafe_view.default}


class _Mode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch would import its compiler (40 MB) only to disable it in `__torch_dispatch__`.
        return False


class LiveBytes(_Mode):
    """Measures the storages that operators in the `with` block return, whether real or on the `meta` device.

    A storage counts once, under the label current at its creation, until it is freed inside or outside the
    block. An older storage counts from the first operator that returns it, or from `count`. Storages are not
    kept alive. Temporary allocations inside a kernel are not included. Sizes are rounded up to a multiple of
    `granularity`, as allocators do (to 512 bytes on CUDA). The overhead is about 3 us per operator.

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
        """Maximum of `live` since the start or the last `reset_peak`."""
        self.label = ""
        """Label of new storages."""
        self.live_by_label: dict[str, int] = {}
        self.peak_by_label: dict[str, int] = {}
        self.operators = 0
        self._granularity = granularity
        # The weak reference, bytes and label of each storage by address.
        self._storages: dict[int, tuple[weakref.ref, int, str]] = {}

    def count(self, tensors: Iterable[Tensor], label: str | None = None) -> None:
        """Count the storages of existing tensors, or change the label of counted storages."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            address = storage._cdata
            if address not in self._storages:
                nbytes = -(-storage.nbytes() // self._granularity) * self._granularity
                reference = weakref.ref(storage, partial(self._forget, address))
                own_label = self.label if label is None else label
                self._storages[address] = reference, nbytes, own_label
                self._add(own_label, nbytes)
            elif label is not None:
                reference, nbytes, before = self._storages[address]
                self._storages[address] = reference, nbytes, label
                self._add(before, -nbytes)
                self._add(label, nbytes)

    def reset_peak(self) -> None:
        """Reset the peak to the current usage."""
        self.peak, self.peak_by_label = self.live, dict(self.live_by_label)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count its results."""
        result = func(*args, **(kwargs or {}))
        # Profiler labels do not create graph nodes.
        self.operators += func.namespace != "profiler"
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
    """Caches the results of `meta` operators.

    On `meta`, torch infers shapes in Python, which takes 0.1 to 4 ms per call, and a recurrent network
    repeats the same calls at every step. A cached operator takes 12 us, or 5 us if it is in place. Results
    have the same shapes, strides and dtypes as torch's. Views, which share storage, and other devices are not
    cached.
    """

    def __init__(self) -> None:
        super().__init__()
        self._table: dict[Any, Callable[[], Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the operator's result, cached if possible."""
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
    """Return "new" for operators that return new tensors, "in place", or "other"."""
    schema = func._schema
    if not schema.is_mutable and not any(item.alias_info for item in schema.returns):
        return "other" if func in _SHARES_STORAGE else "new"
    is_inplace = schema.name.endswith("_") and not func.is_view and len(schema.returns) <= 1
    return "in place" if is_inplace and "resize" not in schema.name else "other"


def _is_meta(value: Any) -> bool:
    """Return whether a result consists of at least one tensor, all on the meta device."""
    parts = [part for part in tree_leaves(value) if part is not None]
    return bool(parts) and all(isinstance(part, Tensor) and part.device.type == "meta" for part in parts)


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device.type
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    # The values 1, 1.0 and True are equal but produce different dtypes.
    return type(value), value


def _maker(result: Any) -> Callable[[], Any]:
    """Return a function that creates results with the same shapes, strides and dtypes."""
    if isinstance(result, Tensor):
        like = partial(torch.empty_strided, dtype=result.dtype, device="meta")
        return partial(like, result.shape, result.stride())
    if result is None:
        return lambda: None
    kind, makers = type(result), list(map(_maker, result))
    return lambda: kind(make() for make in makers)


class DeviceForward(TorchFunctionMode):
    """An autocast region for a forward pass on `meta` that saves the same tensors as a real device.

    On `meta`, torch lacks two features that affect the tensors saved for the backward pass. First, autocast
    casts the inputs of matrix products and convolutions to `dtype` and saves the casts. It casts a weight
    once per region, but a part of a weight (as in the RSSM) at every use. Second, CUDA's `rms_norm` is a
    single kernel that saves its input and one number per row, while torch's composite version saves three
    tensors. Workspace is not included, and other operators on autocast's lists keep their input dtype.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._casts: dict[int, Tensor] = {}
        # This autocast does not affect `meta` tensors, but `full_precision` turns it off.
        self._autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype is not torch.float32)

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a torch function with the casts and saved tensors of a real device."""
        kwargs = kwargs or {}
        if func is F.rms_norm:
            return _rms_norm(*args, **kwargs)
        if func in _LOW_PRECISION and torch.is_autocast_enabled("cpu"):
            args = tuple(map(self._cast, args))
            kwargs = {name: self._cast(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def __enter__(self) -> Self:
        """Enter the region."""
        self._autocast.__enter__()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        """Leave the region and release the cast copies of weights, except for copies saved in a graph."""
        self._casts.clear()
        self._autocast.__exit__(*exception)
        super().__exit__(*exception)

    def _cast(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype is not torch.float32:
            return value
        is_weight = value.requires_grad and value.is_leaf and not value._is_view()
        if not is_weight:
            return value.to(self._dtype)
        # Weights outlive the region, so their ids cannot be reused within it.
        if id(value) not in self._casts:
            self._casts[id(value)] = value.to(self._dtype)
        return self._casts[id(value)]


class _FusedNorm(torch.autograd.Function):
    """RMSNorm with one kernel per direction. Shapes and saved tensors are correct, but the values are not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        """Save the input, the weight and the root mean square of each row."""
        rows = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, rows)
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return gradients with the shapes of the input and the weight."""
        x, weight, _ = ctx.saved_tensors
        of_weight = None if weight is None else torch.empty_like(weight)
        return torch.empty_like(x, memory_format=torch.contiguous_format), of_weight


def _rms_norm(x: Tensor, shape: Any, weight: Tensor | None, eps: float | None = None) -> Tensor:
    return _FusedNorm.apply(x.contiguous(), weight)  # type: ignore[return-value]
