"""List the objects that a Python object references, without running code of the object.

Every walk repeats this step. It calls only descriptors and iterators written in C: no property, no
`__getattr__`, and no other special method of a user's type.
"""

import _io
import collections
import ctypes
import functools
import gc
import inspect
import logging
import mmap
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.machinery import ModuleSpec, SourceFileLoader
from itertools import islice
from typing import Any

import numpy as np

from ..pytorch import TORCH

Child = tuple[str, Any, float]
"""Step of the path (`.deter`, `[3]`, `['key']`), the object, and the number of objects it represents."""

# Number of elements of a container that are examined, evenly spaced if there are more.
SCAN = 65_536
# Number of objects of a container that are walked, evenly spaced if there are more.
SAMPLE = 1_024

_PRIMITIVES = (
    *(int, float, complex, bool, str, bytes, bytearray, range, slice),
    *(type(None), type(Ellipsis), type(NotImplemented)),
)
PRIMITIVE_IDS = set(map(id, _PRIMITIVES))
"""Ids of the types without references. A metaclass may define the hash of a type, so types are no keys. Every
new `Children` adds the types of PyTorch."""

_MODULE_REGISTRIES = ("_parameters", "_buffers", "_modules")
_HOOK_REGISTRY_IDS = (id(set), id(collections.OrderedDict))
_LONGEST_KEY_TEXT = 80
_LONGEST_KEY_BITS = 128
# A function references its globals, its builtins, and its attributes if it has any.
_DICTS_OF_A_FUNCTION = 3
# The references are the frame's, the local variable's, and getrefcount's argument.
_OUR_REFERENCES = 3


def type_attribute(kind: type, name: str) -> Any:
    """Return the C attribute of a type, independent of its metaclass, or `None` if the type lacks it."""
    try:
        return type.__dict__[name].__get__(kind)
    except AttributeError:
        # Some C extension types, e.g. from SWIG, lack `__module__`.
        return None


def type_name(kind: type) -> str:
    """Return the name of a type as a plain str."""
    return "".join([type_attribute(kind, "__name__")])


def sample_evenly(pairs: Iterable[tuple[Any, Any]], length: int) -> Iterator[tuple[Any, Any, float]]:
    """Yield (key, value, weight) of the objects to walk in a container of `length` pairs.

    The weight is the number of objects that each one represents. The last object is always included.
    """
    stride = max(1, -(-length // SCAN))
    # The list is built immediately, because another thread may change the container during the loop.
    looked_at = list(islice(pairs, (length - 1) % stride if length else 0, None, stride))
    weight = length / len(looked_at) if stride > 1 else 1.0
    kept = [pair for pair in looked_at if id(type(pair[1])) not in PRIMITIVE_IDS]
    if len(kept) > SAMPLE:
        weight *= len(kept) / SAMPLE
        last = len(kept) - 1
        kept = [kept[last * i // (SAMPLE - 1)] for i in range(SAMPLE)]
    yield from ((key, value, weight) for key, value in kept)


def items(o: Any) -> Iterator[Child]:
    """Yield the values of a dict, and all keys that are objects."""
    length = dict.__len__(o)
    pairs = zip(enumerate(dict.keys(o)), dict.values(o), strict=True)
    for (position, key), value, weight in sample_evenly(pairs, length):
        yield f"[{_key_text(key, position)}]", value, weight
    for position, key, weight in sample_evenly(enumerate(dict.keys(o)), length):
        if id(type(key)) not in PRIMITIVE_IDS:
            yield f".<key {position}>", key, weight


def sequence(kind: Any, o: Any) -> Iterator[Child]:
    """Yield the elements of a list or a tuple, depending on `kind`."""
    length = kind.__len__(o)
    stride = max(1, -(-length // SCAN))
    start = (length - 1) % stride if length else 0
    # A slice is fast. Iterating over a million elements would dominate the cost.
    part = kind.__getitem__(o, slice(start, None, stride))
    scale = length / len(part) if part else 1.0
    for i, value, weight in sample_evenly(enumerate(part), len(part)):
        yield f"[{start + i * stride}]", value, weight * scale


def queue(o: Any) -> Iterator[Child]:
    """Yield the elements of a deque."""
    return _elements(collections.deque.__iter__(o), collections.deque.__len__(o))


def object_array(o: Any) -> Iterator[Child]:
    """Yield the elements of an object array. Numeric arrays have no references."""
    if np.ndarray.dtype.__get__(o).kind == "O":
        yield from _elements(np.ndarray.flat.__get__(o), np.ndarray.size.__get__(o))


def _elements(values: Iterable[Any], length: int, place: str = "[{}]") -> Iterator[Child]:
    for i, value, weight in sample_evenly(enumerate(values), length):
        yield place.format(i), value, weight


def tensor(dictionary: Any, o: Any) -> Iterator[Child]:
    """Yield the gradient, the hooks and custom attributes of a tensor."""
    hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")
    core = TORCH.module._C
    with core.DisableTorchFunction():
        read = [(name, getattr(core.TensorBase, name).__get__(o)) for name in hooks]
        found = [("grad", gradient_of(o)), *read]
    yield from ((f".{name}", value, 1.0) for name, value in found if value is not None)
    # Without a dict the tensor has no attributes, and reading `__dict__` would create one.
    if any(type(held) is dict for held in gc.get_referents(o)):
        yield from _own_attributes(dictionary, o)


def gradient_of(o: Any) -> Any | None:
    """Return the gradient of a tensor that is a leaf or retains its gradient.

    Reading any other gradient triggers a warning.
    """
    base = TORCH.module._C.TensorBase
    with TORCH.module._C.DisableTorchFunction():
        try:
            has_gradient = base.is_leaf.__get__(o) or base.retains_grad.__get__(o)
        except RuntimeError:
            # The tensor is a view of a base that was changed in place (see `grad_fn`).
            return None
        return base.grad.__get__(o) if has_gradient else None


def function(o: Any) -> Iterator[Child]:
    """Yield the closure, defaults and attributes of a function. Its globals belong to a module."""
    for name, cell in zip(o.__code__.co_freevars, o.__closure__ or (), strict=True):
        yield from ((f".<closure {name}>", value, 1.0) for value in gc.get_referents(cell))
    code, defaults = o.__code__, o.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][-len(defaults) :]
    for name, value in (*zip(names, defaults, strict=False), *(o.__kwdefaults__ or {}).items()):
        yield f".<default {name}>", value, 1.0
    # Reading the attributes of a function would create a permanent dictionary.
    if sum(type(held) is dict for held in gc.get_referents(o)) >= _DICTS_OF_A_FUNCTION:
        yield from _own_attributes(types.FunctionType.__dict__["__dict__"], o)


def fields(owner: type, names: tuple[str, ...], o: Any) -> Iterator[Child]:
    """Yield members defined by the C type `owner`."""
    for name in names:
        yield f".{name}", owner.__dict__[name].__get__(o), 1.0


def frame(o: Any) -> Iterator[Child]:
    """Yield the local variables of a frame."""
    function = o.f_code.co_name.strip("<>")
    yield from ((f".<local {function}:{name}>", value, 1.0) for name, value in frame_locals(o))


def traceback(o: Any) -> Iterator[Child]:
    """Yield the local variables of all frames of a traceback."""
    while o is not None:
        name = o.tb_frame.f_code.co_name
        yield from ((f".<traceback {name}:{k}>", value, 1.0) for k, value in frame_locals(o.tb_frame))
        o = o.tb_next


def exception(o: Any) -> Iterator[Child]:
    """Yield the arguments and causes of an exception, and the local variables of its traceback."""
    yield from fields(BaseException, ("args", "__cause__", "__context__"), o)
    yield from traceback(BaseException.__dict__["__traceback__"].__get__(o))


def lru_cache(o: Any) -> Iterator[Child]:
    """Yield the cached results of a `functools.lru_cache`, and its function."""
    held = gc.get_referents(o)
    return _elements(held, len(held), ".<cache>[{}]")


def thread_local(o: Any) -> Iterator[Child]:
    """Yield the attributes of a `threading.local` in all threads, and the arguments that created it."""
    for held in (each for each in gc.get_referents(o) if type(each) is dict):
        # The keys are weak references to the threads.
        threads = [each for key, each in list(held.items()) if type(key) is weakref.ref]
        yield from (child for each in threads if type(each) is dict for child in _named(each))
    yield from referents(o)


def slot_values(slots: list[tuple[str, Any]], o: Any) -> Iterator[Child]:
    """Yield the values of `__slots__` from (name, descriptor) pairs."""
    for name, descriptor in slots:
        try:
            yield f".{name}", descriptor.__get__(o), 1.0
        except AttributeError:
            # The slot was never set.
            continue


def attributes(dictionary: Any, o: Any) -> Iterator[Child]:
    """Yield the attributes of an instance. The descriptor `dictionary` reads its `__dict__`.

    Reading a missing `__dict__` would create a permanent one, so the garbage collector is asked first.
    """
    if any(id(type(held)) not in PRIMITIVE_IDS for held in gc.get_referents(o) if held is not type(o)):
        yield from _own_attributes(dictionary, o)


def module_attributes(dictionary: Any, o: Any) -> Iterator[Child]:
    """Yield parameters, buffers and submodules under their attribute names, then all other attributes."""
    if issubclass(type(o), TORCH.containers):
        # Their names are keys or indices. With one path for all of them, a container that grows has a name.
        yield from _own_attributes(dictionary, o)
        return
    others = []
    for step, value, weight in _own_attributes(dictionary, o):
        if step[1:] in _MODULE_REGISTRIES and issubclass(type(value), dict):
            yield from ((f".{k}", v, 1.0) for k, v in list(dict.items(value)) if type(k) is str)
        elif id(type(value)) not in _HOOK_REGISTRY_IDS or value:
            # Most registries of hooks are empty.
            others.append((step, value, weight))
    yield from others


def referents(o: Any) -> Iterator[Child]:
    """Yield the objects that the garbage collector sees in a C object, e.g. a set, a queue or an iterator."""
    held = gc.get_referents(o)
    for i, value, weight in sample_evenly(enumerate(held), len(held)):
        if not issubclass(type(value), (type, types.ModuleType)):
            yield f".<{type_name(type(o))} {i}>", value, weight


def frame_locals(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Return the local variables of a function, or [] for a frame of a module or a class body.

    Up to Python 3.12, `f_locals` is a dictionary that stays in the frame and keeps the variables alive. It is
    cleared again unless it has other references (`locals()`) or the function is traced.
    """
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        # For these frames, `f_locals` is the namespace itself.
        return []
    variables = frame.f_locals
    pairs = list(variables.items())
    if sys.version_info < (3, 13) and sys.getrefcount(variables) == _OUR_REFERENCES and not _is_traced(frame):
        variables.clear()
    return pairs


def _is_traced(frame: types.FrameType) -> bool:
    """Return whether the end of a trace function may set the variables of a frame from `f_locals`."""
    tracers = frame.f_trace, sys.gettrace(), sys.getprofile()
    # Coverage's tracer and cProfile, which is not callable, are written in C and set no variables.
    return any(callable(each) and type_name(type(each)) != "CTracer" for each in tracers)


def _own_attributes(dictionary: Any, o: Any) -> Iterator[Child]:
    own = dictionary.__get__(o)
    # A C type may return any object, or have no dictionary yet.
    yield from _named(own) if issubclass(type(own), dict) else ()


def _named(own: dict[Any, Any]) -> Iterator[Child]:
    for name, value, weight in sample_evenly(dict.items(own), dict.__len__(own)):
        yield f".{name}" if type(name) is str else f".<{type_name(type(name))}>", value, weight


def _is_plain(key: object) -> bool:
    """Return whether a key is a number, a string, or a tuple of them."""
    return id(type(key)) in PRIMITIVE_IDS or (type(key) is tuple and all(map(_is_plain, key)))


def _key_text(key: Any, position: int) -> str:
    """Return the text of a key, or its type and position if its `repr` would run third-party code."""
    if not _is_plain(key) or (type(key) is int and key.bit_length() > _LONGEST_KEY_BITS):
        return f"<{type_name(type(key))} {position}>"
    text = repr(key)
    return text if len(text) <= _LONGEST_KEY_TEXT else f"{text[:_LONGEST_KEY_TEXT]}..."


Reader = Callable[[Any], Iterable[Child]]

# These types are not entered: there are many objects, and they do not grow.
_CLOSED = (
    *(type, types.ModuleType, types.CodeType, types.GenericAlias, types.UnionType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType),
    *(types.ClassMethodDescriptorType, types.WrapperDescriptorType),
    *(weakref.ReferenceType, *weakref.ProxyTypes, ModuleSpec, SourceFileLoader),
)
_LIBRARY_TYPES = (logging.Logger, logging.Manager, _io._IOBase, np.generic, np.dtype)
_LIBRARY_MODULES = (*"torch._ torch.fx. torch.cuda. numpy. importlib. _frozen_importlib. _thread.".split(),)
_LANGUAGE: dict[type, Reader] = {
    dict: items,
    list: functools.partial(sequence, list),
    tuple: functools.partial(sequence, tuple),
    collections.deque: queue,
    set: referents,
    frozenset: referents,
    np.ndarray: object_array,
    types.FunctionType: function,
    types.MethodType: functools.partial(fields, types.MethodType, ("__self__", "__func__")),
    # A stored callback such as `store.append` references the store.
    types.BuiltinFunctionType: functools.partial(fields, types.BuiltinFunctionType, ("__self__",)),
    functools.partial: functools.partial(fields, functools.partial, ("func", "args", "keywords")),
    types.GeneratorType: functools.partial(fields, types.GeneratorType, ("gi_frame",)),
    types.CoroutineType: functools.partial(fields, types.CoroutineType, ("cr_frame",)),
    types.AsyncGeneratorType: functools.partial(fields, types.AsyncGeneratorType, ("ag_frame",)),
    BaseException: exception,
    types.TracebackType: traceback,
    types.FrameType: frame,
    functools._lru_cache_wrapper: lru_cache,
    threading.local: thread_local,
}
_POINTER = 8
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_CDATA: Any = ctypes.Array.__mro__[1]


class Role(Enum):
    """Role of an object in a walk: a leaf is a tensor or an array, a node belongs to an autograd graph."""

    plain = "plain"
    leaf = "leaf"
    node = "node"


@dataclass(frozen=True, slots=True)
class Kind:
    """How to read the objects of a type."""

    type: type
    """The type itself. The reference prevents reuse of its id."""
    role: Role
    readers: tuple[Reader, ...]
    dictionary: Any | None
    """The descriptor that reads `__dict__`, or `None` if it is missing or reading it would create a dict."""
    size: Callable[[Any], int]
    """Reads the size of an object in bytes, using only C code."""


class Children:
    """Lists the objects that an object refers to.

    It enters PyTorch, NumPy, loggers and files only if `enters_libraries`.
    """

    def __init__(self, enters_libraries: bool = False) -> None:
        self._enters_libraries = enters_libraries
        self._by_type: dict[int, Kind] = {}
        TORCH.refresh()
        PRIMITIVE_IDS.update(map(id, TORCH.plain))

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
    """Return the descriptor that reads `__dict__`, or `None`. A property called `__dict__` is ignored."""
    kinds = types.GetSetDescriptorType, types.MemberDescriptorType
    return next((each for each in _definitions(kind, "__dict__") if issubclass(type(each), kinds)), None)


def _definitions(kind: type, name: str) -> Iterator[Any]:
    """Yield the definitions of a name in the classes of a type, in resolution order."""
    for base in type_attribute(kind, "__mro__"):
        if name in type_attribute(base, "__dict__"):
            yield type_attribute(base, "__dict__")[name]


def _role(kind: type) -> Role:
    if issubclass(kind, (TORCH.Tensor, np.ndarray)):
        return Role.leaf
    found = _definitions(kind, "next_functions")
    is_node = any(type(each) is types.GetSetDescriptorType for each in found)
    return Role.node if is_node else Role.plain


def _is_of_a_library(kind: type, role: Role) -> bool:
    """Return whether a type is internal to PyTorch, NumPy or the interpreter. `nn.Module` types are not."""
    if issubclass(kind, TORCH.Module):
        return False
    name = type_attribute(kind, "__module__")
    is_internal = type(name) is str and f"{name}.".startswith(_LIBRARY_MODULES)
    return is_internal or role is Role.node or issubclass(kind, _LIBRARY_TYPES)


def _readers(kind: type) -> Iterator[Reader]:
    """Yield the readers of a type."""
    dictionary = dictionary_getter(kind)
    if issubclass(kind, TORCH.Tensor):
        yield functools.partial(tensor, dictionary)
        return
    language = next((read for base, read in _LANGUAGE.items() if issubclass(kind, base)), None)
    if language is not None:
        yield language
    slots = [slot for base in type_attribute(kind, "__mro__") for slot in _slots(base)]
    if slots:
        yield functools.partial(slot_values, slots)
    if dictionary is not None and kind is not types.FunctionType:
        read = module_attributes if issubclass(kind, TORCH.Module) else attributes
        yield functools.partial(read, dictionary)
    # Subclasses of C classes, such as the blocks of a pandas table, have fields in addition to a `__dict__`.
    offsets = (type_attribute(kind, name) for name in ("__dictoffset__", "__weakrefoffset__"))
    own = object.__basicsize__ + _POINTER * (len(slots) + sum(each > 0 for each in offsets))
    if not language and (type_attribute(kind, "__basicsize__") > own or not (slots or dictionary)):
        yield referents


def _slots(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the name and descriptor of each slot of a class. Members of C classes are not slots."""
    if type_attribute(kind, "__flags__") & _HEAP_TYPE:
        for name, value in type_attribute(kind, "__dict__").items():
            if type(value) is types.MemberDescriptorType:
                yield name, value


def _size_reader(kind: type) -> Callable[[Any], int]:
    if issubclass(kind, _CDATA):
        return ctypes.sizeof
    if kind is mmap.mmap:
        return lambda value: 0 if value.closed else len(value)
    # A `__sizeof__` written in Python is user code, so it is skipped.
    found = _definitions(kind, "__sizeof__")
    readers = (each for each in found if type(each) is types.MethodDescriptorType)
    return next(readers, object.__sizeof__)
