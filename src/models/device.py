"""Tell which device computes a tensor: some exact forms are fast on a CPU and slow on CUDA."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_META_STANDS_FOR = ContextVar("meta_stands_for", default="cpu")


def runs_on_cpu(x: Tensor) -> bool:
    """Return whether the CPU computes with `x`, or would if `x` were not on device `meta`."""
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
