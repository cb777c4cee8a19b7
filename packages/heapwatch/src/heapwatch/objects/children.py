"""List what one Python object holds, without running code of the object: the step that every walk repeats."""

import _io
import collections
import ctypes
import functools
import logging
import mmap
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any

import numpy as np
from torch import Tensor, nn

from . import readers
from .readers import PRIMITIVE_IDS, Child, type_attribute

Reader = Callable[[Any], Iterable[Child]]

_CLOSED = (
    *(type, types.ModuleType, types.CodeType, types.GenericAlias, types.UnionType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType),
    *(types.ClassMethodDescriptorType, types.WrapperDescriptorType),
    *(weakref.ReferenceType, *weakref.ProxyTypes, ModuleSpec, SourceFileLoader),
)  # not entered: there are many, and they hold nothing that grows
_LIBRARY_TYPES = (logging.Logger, logging.Manager, _io._IOBase, np.generic, np.dtype)
_LIBRARY_MODULES = (
    *("torch._", "torch.fx.", "torch.cuda.", "numpy."),
    *("importlib.", "_frozen_importlib.", "_thread."),
)
_LANGUAGE: dict[type, Reader] = {
    dict: readers.items,
    list: functools.partial(readers.sequence, list),
    tuple: functools.partial(readers.sequence, tuple),
    collections.deque: readers.queue,
    set: readers.referents,
    frozenset: readers.referents,
    np.ndarray: readers.object_array,
    types.FunctionType: readers.function,
    types.MethodType: functools.partial(readers.fields, types.MethodType, ("__self__", "__func__")),
    # `store.append`, kept as a callback, holds the store
    types.BuiltinFunctionType: functools.partial(readers.fields, types.BuiltinFunctionType, ("__self__",)),
    functools.partial: functools.partial(readers.fields, functools.partial, ("func", "args", "keywords")),
    types.GeneratorType: functools.partial(readers.fields, types.GeneratorType, ("gi_frame",)),
    types.CoroutineType: functools.partial(readers.fields, types.CoroutineType, ("cr_frame",)),
    types.AsyncGeneratorType: functools.partial(readers.fields, types.AsyncGeneratorType, ("ag_frame",)),
    BaseException: readers.exception,
    types.TracebackType: readers.traceback,
    types.FrameType: readers.frame,
    functools._lru_cache_wrapper: readers.lru_cache,
}
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_CDATA: Any = ctypes.Array.__mro__[1]


class Role(Enum):
    """What a walk takes an object for: a leaf is a tensor or an array, a node one of an autograd graph."""

    plain = "plain"
    leaf = "leaf"
    node = "node"


@dataclass(frozen=True, slots=True)
class Kind:
    """How to read the objects of a type."""

    type: type
    """The type itself: its id must not be given to another one."""
    role: Role
    readers: tuple[Reader, ...]
    dictionary: Any | None
    """The descriptor that reads `__dict__`, None where there is none, or where asking would make one."""
    size: Callable[[Any], int]
    """Reads the bytes of an object by C code alone."""


class Children:
    """Lists what objects hold; of PyTorch, NumPy, loggers and files only if it `enters_libraries`."""

    def __init__(self, enters_libraries: bool = False) -> None:
        self._enters_libraries = enters_libraries
        self._by_type: dict[int, Kind] = {}

    def __call__(self, value: Any) -> list[Child]:
        """Return what an object holds."""
        return [child for read in self.kind_of(value).readers for child in read(value)]

    def kind_of(self, value: Any) -> Kind:
        """Return how to read an object."""
        kind = type(value)
        if id(kind) not in self._by_type:
            role = _role(kind)
            is_closed = id(kind) in PRIMITIVE_IDS or issubclass(kind, _CLOSED)
            is_entered = self._enters_libraries or role is Role.leaf or not _is_of_a_library(kind, role)
            found = tuple(_readers(kind)) if is_entered and not is_closed else ()
            dictionary = None if kind is types.FunctionType else dictionary_getter(kind)
            self._by_type[id(kind)] = Kind(kind, role, found, dictionary, _size_reader(kind))
        return self._by_type[id(kind)]


def dictionary_getter(kind: type) -> Any | None:
    """Return the descriptor that reads `__dict__`, None without one; a property of that name hides none."""
    for base in type_attribute(kind, "__mro__"):
        descriptor = type_attribute(base, "__dict__").get("__dict__")
        if type(descriptor) is types.GetSetDescriptorType or type(descriptor) is types.MemberDescriptorType:
            return descriptor
    return None


def _role(kind: type) -> Role:
    if issubclass(kind, (Tensor, np.ndarray)):
        return Role.leaf
    for base in type_attribute(kind, "__mro__"):
        if type(type_attribute(base, "__dict__").get("next_functions")) is types.GetSetDescriptorType:
            return Role.node
    return Role.plain


def _is_of_a_library(kind: type, role: Role) -> bool:
    """Return whether a type belongs to the insides of PyTorch, NumPy or the interpreter; modules do not."""
    if issubclass(kind, nn.Module):
        return False
    name = type_attribute(kind, "__module__")
    is_internal = type(name) is str and f"{name}.".startswith(_LIBRARY_MODULES)
    return is_internal or role is Role.node or issubclass(kind, _LIBRARY_TYPES)


def _readers(kind: type) -> Iterator[Reader]:
    """Yield how to read a type."""
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
    if dictionary is not None and kind is not types.FunctionType:
        read = readers.module_attributes if issubclass(kind, nn.Module) else readers.attributes
        yield functools.partial(read, dictionary)
    if not (language or slots or dictionary):
        yield readers.referents


def _slots(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield name and descriptor of the `__slots__` of one class; members of a C class are none."""
    if type_attribute(kind, "__flags__") & _HEAP_TYPE:
        for name, value in type_attribute(kind, "__dict__").items():
            if type(value) is types.MemberDescriptorType:
                yield name, value


def _size_reader(kind: type) -> Callable[[Any], int]:
    if issubclass(kind, _CDATA):
        return ctypes.sizeof
    if kind is mmap.mmap:
        return lambda value: 0 if value.closed else len(value)
    for base in type_attribute(kind, "__mro__"):
        reader = type_attribute(base, "__dict__").get("__sizeof__")
        if type(reader) is types.MethodDescriptorType:  # written in Python it would be code of the user's
            return reader
    return object.__sizeof__
