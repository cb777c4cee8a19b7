"""Find the memory that a tensor or an array keeps alive: its storage, by device and address.

Nothing is copied, no device is waited for, and no code of a subclass runs.
"""

import array
import ctypes
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

StorageKey = tuple[str, int]  # device ("cpu", "cuda:0") and address of the first byte

_TENSOR: Any = torch._C.TensorBase  # the methods of the base: a subclass may replace its own
_STORAGE = torch.UntypedStorage
# Types whose buffer C exports. Others may define `__buffer__` in Python (3.12), and that is user code.
_BUFFERS = (bytes, bytearray, mmap.mmap, array.array)
_NO_MEMORY = ("meta", "lazy", "xla")


@dataclass(frozen=True, slots=True)
class Storage:
    """One piece of memory, whole, however little of it is looked at."""

    key: StorageKey
    nbytes: int
    device: str


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor; unlike `isinstance`, does not ask a proxy for its `__class__`."""
    return issubclass(type(value), Tensor)


def storage_of(value: Tensor | np.ndarray) -> Storage | None:
    """Return the storage that a tensor or an array keeps alive; None for meta, fake, empty and sparse values.

    All views of one memory have one key, tensors as arrays, but for `torch.from_numpy` of a *slice*: it
    begins where the slice does, since PyTorch knows no more than that.

    Cost: about 2 us.
    """
    root: Any = value
    tensor: Any = value
    if not is_tensor(value):
        base = _array_attribute(value, "base")
        while issubclass(type(base), np.ndarray):
            root, base = base, _array_attribute(base, "base")
        while type(base) is memoryview:
            base = base.obj
        if not is_tensor(base):
            address, nbytes = _buffer_extent(base) or _array_extent(root)
            return Storage(("cpu", address), nbytes, "cpu") if address and nbytes else None
        tensor = base
    with torch._C.DisableTorchFunction():
        try:
            storage = _TENSOR.untyped_storage(tensor)
            nbytes, device = _STORAGE.nbytes(storage), storage.device
            # A fake tensor's storage is on "meta", and asking for its address would warn.
            address = 0 if device.type in _NO_MEMORY else _STORAGE.data_ptr(storage)
        except (RuntimeError, NotImplementedError):  # sparse, functional and opaque tensors have no storage
            return None
    return Storage((str(device), address), nbytes, str(device)) if address and nbytes else None


def shape_of(value: Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor, whatever its subclass says."""
    with torch._C.DisableTorchFunction():
        return tuple(_TENSOR.shape.__get__(value))


def logical_bytes(value: Tensor | np.ndarray) -> int:
    """Return the bytes of the elements that a tensor or an array shows, however large its storage is."""
    if is_tensor(value):
        with torch._C.DisableTorchFunction():
            return _TENSOR.numel(value) * _TENSOR.element_size(value)
    return _array_attribute(value, "nbytes")


def _buffer_extent(owner: object) -> tuple[int, int] | None:
    """Return address and size of the whole buffer behind an array, None for an owner of unknown type."""
    if any(type(owner) is buffer for buffer in _BUFFERS):  # not `in`: a metaclass may define equality
        try:
            return _array_extent(np.frombuffer(owner, np.uint8))  # type: ignore[arg-type]
        except ValueError:  # empty, or a closed map
            return None
    if issubclass(type(owner), ctypes.Array):
        return ctypes.addressof(owner), ctypes.sizeof(owner)  # type: ignore[arg-type]
    return None


def _array_extent(value: Any) -> tuple[int, int]:
    return _array_attribute(value, "__array_interface__")["data"][0], _array_attribute(value, "nbytes")


def _array_attribute(value: Any, name: str) -> Any:
    """Return an attribute of the plain array, whatever a subclass calls by the same name."""
    return getattr(np.ndarray, name).__get__(value)
