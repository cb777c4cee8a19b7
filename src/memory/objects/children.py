"""What one Python object holds, read without running code of the object: the step that every walk repeats."""

import _io
import collections
import functools
import logging
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from torch import Tensor, nn

from . import readers
from .readers import PRIMITIVE_IDS, Child, type_attribute

Reader = Callable[[Any], Iterable[Child]]

_OPAQUE = (
    *(type, types.ModuleType, types.CodeType, weakref.ReferenceType, *weakref.ProxyTypes),
    *(logging.Logger, logging.Manager, _io._IOBase, np.generic, np.dtype),
)
_OPAQUE_MODULES = (
    *("torch._", "torch.fx.", "torch.cuda.", "numpy."),
    *("importlib.", "_frozen_importlib.", "_thread."),
)
_LANGUAGE: dict[type, Reader] = {
    dict: readers.items,
    list: functools.partial(readers.sequence, list),
    tuple: functools.partial(readers.sequence, tuple),
    collections.deque: readers.queue,
    set: functools.partial(readers.members, set),
    frozenset: functools.partial(readers.members, frozenset),
    np.ndarray: readers.object_array,
    types.FunctionType: readers.function,
    types.MethodType: functools.partial(readers.fields, types.MethodType, ("__self__", "__func__")),
    types.BuiltinFunctionType: functools.partial(
        readers.fields, types.BuiltinFunctionType, ("__self__",)
    ),  # `store.append`, kept as a callback
    functools.partial: readers.partial,
    types.CellType: readers.cell,
    types.GeneratorType: functools.partial(readers.suspended, "gi_frame"),
    types.CoroutineType: functools.partial(readers.suspended, "cr_frame"),
    types.AsyncGeneratorType: functools.partial(readers.suspended, "ag_frame"),
    BaseException: readers.exception,
    types.TracebackType: readers.traceback,
    types.FrameType: readers.frame,
}
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


_LENGTHS: dict[type, Callable[[Any], int]] = {
    base: base.__len__ for base in (dict, list, tuple, collections.deque, set, frozenset)
}


class Role(Enum):
    """What a walk does with an object, besides going on to what it holds."""

    plain = "plain"
    leaf = "leaf"
    """A tensor or an array."""

    node = "node"
    """A node of an autograd graph."""


class Children:
    """Lists what objects hold. How to read a type is decided once, at its first object.

    Types are known by their id, so what is read must stay alive for as long as this object is used.
    """

    def __init__(self) -> None:
        self._by_type: dict[int, _Known] = {}

    def __call__(self, value: Any) -> list[Child]:
        """Return what an object holds. Call it under `torch._C.DisableTorchFunction`."""
        return [child for read in self._known(type(value)).readers for child in read(value)]

    def role(self, value: Any) -> Role:
        """Return the role of an object, which is that of its type."""
        return self._known(type(value)).role

    def length(self, value: Any) -> int:
        """Return the number of elements of a container, 0 for anything else."""
        count = self._known(type(value)).count
        return 0 if count is None else count(value)

    def _known(self, kind: type) -> "_Known":
        known = self._by_type.get(id(kind))
        if known is None:
            count = next((count for base, count in _LENGTHS.items() if issubclass(kind, base)), None)
            known = self._by_type[id(kind)] = _Known(_role(kind), tuple(_readers(kind)), count)
        return known


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a type."""

    role: Role
    readers: tuple[Reader, ...]
    count: Callable[[Any], int] | None


def is_node(kind: type) -> bool:
    """Return whether a type is that of a node of an autograd graph."""
    found = (type_attribute(c, "__dict__").get("next_functions") for c in type_attribute(kind, "__mro__"))
    return any(type(descriptor) is types.GetSetDescriptorType for descriptor in found)


def dictionary_getter(kind: type) -> Any | None:
    """Return the descriptor that reads `__dict__`, None without one.

    A class may hide it behind a property of the same name: the descriptor of a base class is then as good,
    and without that either the values are read as referents.
    """
    for base in type_attribute(kind, "__mro__"):
        descriptor = type_attribute(base, "__dict__").get("__dict__")
        if type(descriptor) is types.GetSetDescriptorType or type(descriptor) is types.MemberDescriptorType:
            return descriptor
    return None


def _role(kind: type) -> Role:
    if is_node(kind):
        return Role.node
    return Role.leaf if issubclass(kind, (Tensor, np.ndarray)) else Role.plain


def _readers(kind: type) -> Iterator[Reader]:
    """Yield how to read a type; nothing for one that holds nothing of the user's."""
    is_module = issubclass(kind, nn.Module)
    if id(kind) in PRIMITIVE_IDS or (is_opaque(kind) and not is_module):
        return
    dictionary = dictionary_getter(kind)
    if issubclass(kind, Tensor):
        yield functools.partial(readers.tensor, dictionary)
        return
    language = next((read for base, read in _LANGUAGE.items() if issubclass(kind, base)), None)
    if language is not None:
        yield language
    slots = [slot for base in type_attribute(kind, "__mro__") for slot in _slots(base)]
    if slots:
        yield functools.partial(readers.slot_values, slots)
    if dictionary is not None:
        read = readers.module_attributes if is_module else readers.attributes
        yield functools.partial(read, dictionary)
    is_unknown = not (language or slots or dictionary)
    if is_unknown or kind is functools._lru_cache_wrapper:
        yield readers.referents


def is_opaque(kind: type) -> bool:
    """Return whether a walk stops at objects of a type: insides of PyTorch, NumPy and the interpreter."""
    if _role(kind) is Role.leaf:
        return False
    name = type_attribute(kind, "__module__")
    is_internal = type(name) is str and f"{name}.".startswith(_OPAQUE_MODULES)
    return is_internal or _role(kind) is Role.node or issubclass(kind, _OPAQUE)


def _slots(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield name and descriptor of the `__slots__` of one class; members of a C class are none."""
    if type_attribute(kind, "__flags__") & _HEAP_TYPE:
        for name, value in type_attribute(kind, "__dict__").items():
            if type(value) is types.MemberDescriptorType:
                yield name, value
