"""Find the memory that a tensor or an array keeps alive: its storage, by device and address.

The functions copy no data, synchronize with no device and run no code of a subclass.
"""

import array
import ctypes
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..pytorch import TORCH

# Device ("cpu", "cuda:0") and address of the first byte.
StorageKey = tuple[str, int]

# Types with a buffer exported by C code. Other types may define `__buffer__` in Python (3.12) as user
# code.
_BUFFERS = (bytes, bytearray, mmap.mmap, array.array)
_NO_MEMORY = ("meta", "lazy", "xla")


@dataclass(frozen=True, slots=True)
class Storage:
    """A whole storage, regardless of how little of it is visible."""

    key: StorageKey
    nbytes: int


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor. Unlike `isinstance`, it does not read a proxy's `__class__`."""
    return issubclass(type(value), TORCH.Tensor)


def storage_of(value: Any) -> Storage | None:
    """Return the storage of a tensor or an array, or `None` for meta, fake, empty and sparse values.

    All views of a memory block have the same key, tensors and arrays alike. The exception is a slice passed
    to `torch.from_numpy`: its storage starts at the slice, because PyTorch has no access to the base.

    Cost: about 2 us.
    """
    root = tensor = value
    if not is_tensor(value):
        base = _array_attribute(value, "base")
        while issubclass(type(base), np.ndarray):
            root, base = base, _array_attribute(base, "base")
        while type(base) is memoryview:
            base = base.obj
        if not is_tensor(base):
            address, nbytes = _buffer_extent(base) or _array_extent(root)
            return Storage(("cpu", address), nbytes) if address and nbytes else None
        tensor = base
    torch = TORCH.module
    with torch._C.DisableTorchFunction():
        try:
            # The base class provides the methods, because a subclass may override its own.
            storage = torch._C.TensorBase.untyped_storage(tensor)
            nbytes, device = torch.UntypedStorage.nbytes(storage), storage.device
            # A fake tensor's storage is on "meta", and reading its address would cause a warning.
            address = 0 if device.type in _NO_MEMORY else torch.UntypedStorage.data_ptr(storage)
        except (RuntimeError, NotImplementedError):
            # Sparse, functional and opaque tensors have no storage.
            return None
    return Storage((str(device), address), nbytes) if address and nbytes else None


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor, independent of overrides in a subclass."""
    core = TORCH.module._C
    with core.DisableTorchFunction():
        return tuple(core.TensorBase.shape.__get__(value))


def logical_bytes(value: Any) -> int:
    """Return the bytes of the elements of a tensor or an array, regardless of the size of its storage."""
    if is_tensor(value):
        core = TORCH.module._C
        with core.DisableTorchFunction():
            return core.TensorBase.numel(value) * core.TensorBase.element_size(value)
    return _array_attribute(value, "nbytes")


def _buffer_extent(owner: object) -> tuple[int, int] | None:
    """Return the address and size of the whole buffer behind an array, or `None` for an unknown owner."""
    # The `in` operator could call an equality defined by a metaclass.
    if any(type(owner) is buffer for buffer in _BUFFERS):
        try:
            return _array_extent(np.frombuffer(owner, np.uint8))  # type: ignore[arg-type]
        except ValueError:
            # The buffer is empty, or the map is closed.
            return None
    if issubclass(type(owner), ctypes.Array):
        return ctypes.addressof(owner), ctypes.sizeof(owner)  # type: ignore[arg-type]
    return None


def _array_extent(value: Any) -> tuple[int, int]:
    return _array_attribute(value, "__array_interface__")["data"][0], _array_attribute(value, "nbytes")


def _array_attribute(value: Any, name: str) -> Any:
    """Return an attribute of the base array, independent of overrides in a subclass."""
    return getattr(np.ndarray, name).__get__(value)
