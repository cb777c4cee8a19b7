"""How many bytes the whole Python heap holds, by the path that leads to them.

For when memory grows. It begins at the run's own objects, then at the local variables of all threads, the
globals and classes of the user's modules; on request also at those of all libraries, and ends then with what
the garbage collector knows and none of these reach. Texts and numbers only are kept.
"""

import collections
import ctypes
import gc
import re
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

import torch

from .children import Children, Role, dictionary_getter, is_opaque
from .frames import frame_locals, running_frames
from .readers import PRIMITIVE_IDS, SCAN, type_attribute, type_name
from .storages import StorageKey, buffer_bytes, storage_of

_OWN_FOLDER = str(Path(__file__).parents[1])
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_LONGEST_PATH = 240  # a linked list makes ever longer ones
_DICTS_OF_A_FUNCTION = 3  # globals, builtins, and its attributes if it has any
_LEAST_BYTES = 1_000  # paths that hold less are not kept by name
_CDATA: Any = ctypes.Array.__mro__[1]
_INERT = frozenset(
    map(
        id,
        (
            *(types.GetSetDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
            *(types.WrapperDescriptorType, types.MemberDescriptorType),
            *(types.CodeType, types.GenericAlias, types.UnionType, types.MappingProxyType),
            *(property, classmethod, staticmethod, weakref.ref, ModuleSpec, SourceFileLoader),
        ),
    )
)
"""Ids of types whose objects are many, and hold nothing that grows."""
_CONTAINERS = (dict, list, set, collections.deque)
_NUMBERED = re.compile(r"\[[^\]]*\d[^\]]*\]|<[\w.]+ \d+>")
_CACHE = re.compile(r"\.<_lru_cache_wrapper \*>(\[\*\])?(\.<_lru_list_elem \*>)*")


@dataclass(frozen=True, slots=True)
class Heap:
    """Bytes that Python objects hold: their own, and the memory of their tensors, arrays and buffers."""

    held: dict[str, dict[str, float]]
    """By kind of device ("cpu", "cuda"), then by path, numbers of elements as `[*]`, without small paths."""

    totals: dict[str, float]
    """By kind of device, small paths included."""

    is_whole: bool
    """Whether libraries, and what nothing names, are included."""


def measure_heap(roots: Mapping[str, Any], is_whole: bool) -> Heap:
    """Return what the Python heap holds now.

    Containers of more than 1,024 objects are sampled and extrapolated. Runs no code of what it visits, and
    keeps none of it.

    Args:
        roots: The run's own objects by name; what they reach counts under their names.
        is_whole: Whether to look at libraries, and at what nothing names, too.

    Cost: 0.3 s, for the whole heap 3 s, in a process that has imported PyTorch, on a busy machine.
    """
    gc.collect()
    existing = gc.get_objects()
    with torch._C.DisableTorchFunction():
        return _Measurement().of(roots, existing, is_whole)


def pattern(path: str) -> str:
    """Return a path with the numbers of elements as `*`: a growing list is one path, however long.

    >>> pattern("module trainer.CACHE[17]['obs'].<member 3>")
    "module trainer.CACHE[*]['obs'].<member *>"
    """
    return _NUMBERED.sub(_as_star, path)


class _Measurement:
    """One pass over the heap."""

    def __init__(self) -> None:
        self._children = Children()
        self._seen = set[int]()
        self._keep: list[Any] = []  # an id must not be given to a new object while the pass lasts
        self._storages = set[StorageKey]()
        self._sizes: dict[int, Any] = {}  # what reads the size of a type, by the id of the type
        self._dictionaries: dict[int, Any] = {}  # what reads `__dict__`, by the id of the type
        self._steps: dict[str, str] = {}
        self._held: dict[str, dict[str, float]] = {}

    def of(self, roots: Mapping[str, Any], existing: list[Any], is_whole: bool) -> Heap:
        """Return what is held; `existing` is all that the garbage collector knows."""
        own = {id(existing), *map(id, (self._seen, self._keep, self._storages, self._sizes, self._held))}
        self._seen |= own | {id(self), id(self._steps), id(self._children), id(self._dictionaries)}
        for former in (each for each in existing if type(each) is Heap):
            self._seen |= set(map(id, (former, former.held, former.totals, *former.held.values())))
        for name, value in roots.items():
            self._visit(name, value)
        for name, value in _starts(existing, is_whole):
            self._visit(name, value)
        for value in existing if is_whole else ():
            if id(value) not in self._seen and type(value) is not tuple:  # one that matters has an owner
                self._visit(f"<{type_name(type(value))} that nothing names>", value)
        totals = {device: sum(paths.values()) for device, paths in self._held.items()}
        kept = {
            device: {path: nbytes for path, nbytes in paths.items() if nbytes >= _LEAST_BYTES}
            for device, paths in self._held.items()
        }
        return Heap(kept, totals, is_whole)

    def _visit(self, name: str, root: Any) -> None:
        stack = [(name, 1.0, root)]
        while stack:
            path, weight, value = stack.pop()
            kind = type(value)
            if id(kind) in _INERT or id(value) in self._seen or _is_inert(value):
                continue
            self._seen.add(id(value))
            self._keep.append(value)
            if id(kind) in PRIMITIVE_IDS:
                self._add("cpu", path, weight * self._size(value))
                continue
            if self._children.role(value) is Role.leaf:
                storage = storage_of(value)
                if storage is not None and storage.key not in self._storages:
                    self._storages.add(storage.key)
                    self._add(storage.device.partition(":")[0], path, weight * storage.nbytes)
            else:
                self._add("cpu", path, weight * (self._size(value) + self._primitives(value)))
            children = self._children(value)
            if children:
                self._add("cpu", path, weight * self._attributes_bytes(value))
            elif is_opaque(kind):
                referents = gc.get_referents(value)
                children = [(f".<{type_name(type(each))}>", each, 1.0) for each in referents]
            for step, child, share in reversed(children):
                stack.append((self._extended(path, step), weight * share, child))

    def _primitives(self, value: Any) -> float:
        """Return the bytes of the numbers and texts that an object refers to, each counted once."""
        held = gc.get_referents(value)
        stride = max(1, -(-len(held) // SCAN))
        total = 0
        for each in held[::stride]:
            if id(type(each)) in PRIMITIVE_IDS and id(each) not in self._seen:
                self._seen.add(id(each))
                total += self._size(each)
        return float(total * stride)

    def _attributes_bytes(self, value: Any) -> int:
        """Return the bytes of an object's `__dict__`, which reading the attributes may have made."""
        kind = type(value)
        if id(kind) not in self._dictionaries:
            self._dictionaries[id(kind)] = dictionary_getter(kind)
        getter = self._dictionaries[id(kind)]
        own = None if getter is None else getter.__get__(value)
        if type(own) is not dict or id(own) in self._seen:
            return 0
        self._seen.add(id(own))
        return dict.__sizeof__(own)

    def _size(self, value: Any) -> int:
        """Return an object's own bytes, and those of a buffer that it owns; only C code is asked."""
        kind = type(value)
        read = self._sizes.get(id(kind))
        if read is None:
            read = self._sizes[id(kind)] = _size_reader(kind)
            self._keep.append(kind)
        return read(value)

    def _add(self, device: str, path: str, nbytes: float) -> None:
        paths = self._held.setdefault(device, {})
        paths[path] = paths.get(path, 0.0) + nbytes

    def _extended(self, path: str, step: str) -> str:
        if len(path) > _LONGEST_PATH:
            return path
        if step not in self._steps:
            self._steps[step] = pattern(step)
        return _CACHE.sub(".<cache>", path + self._steps[step])


def _as_star(match: re.Match[str]) -> str:
    text = match[0]
    return "[*]" if text[0] == "[" else f"{text.rpartition(' ')[0]} *>"


def _starts(existing: list[Any], is_whole: bool) -> Iterator[tuple[str, Any]]:
    """Yield names and values that a program can reach by name, the user's own before those of libraries."""
    for frame in running_frames():
        code = frame.f_code
        if not code.co_filename.startswith(_OWN_FOLDER):
            for variable, value in frame_locals(frame):
                yield f"frame {code.co_name} {variable}", value
    modules = [m for m in list(sys.modules.values()) if issubclass(type(m), types.ModuleType)]
    namespaces = [_namespace(module) for module in modules]
    classes = [each for each in existing if issubclass(type(each), type)]
    for of_libraries in (False, True) if is_whole else (False,):
        chosen = [namespace for namespace in namespaces if _is_library(namespace) is of_libraries]
        names = {namespace.get("__name__") for namespace in chosen}
        for namespace in chosen:
            yield from _named(f"module {namespace.get('__name__')}", namespace)
        for each in classes:
            module = type_attribute(each, "__module__")
            if (module in names) if type(module) is str else of_libraries:
                yield from _named(f"class {module}.{type_name(each)}", type_attribute(each, "__dict__"))


def _named(name: str, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in list(namespace.items()):
        yield f"{name}.{key}", value


def _namespace(module: types.ModuleType) -> dict[str, Any]:
    return type_attribute(types.ModuleType, "__dict__")["__dict__"].__get__(module)


def _is_library(namespace: dict[str, Any]) -> bool:
    """Return whether a module is not the user's own: installed, or part of Python."""
    file = namespace.get("__file__")
    is_installed = type(file) is not str or file.startswith(_LIBRARIES)
    return is_installed and namespace.get("__name__") != "__main__"  # which has no file in a notebook


def _is_inert(value: Any) -> bool:
    """Return whether a value is a module or a class (a start itself), or a bare function."""
    kind = type(value)
    if kind is types.BuiltinFunctionType:  # `store.append`, kept as a callback, holds the store
        return not issubclass(type(value.__self__), _CONTAINERS)
    if kind is not types.FunctionType:
        return issubclass(kind, (types.ModuleType, type))
    if value.__closure__ or value.__defaults__ or value.__kwdefaults__:
        return False
    return sum(type(held) is dict for held in gc.get_referents(value)) < _DICTS_OF_A_FUNCTION


def _size_reader(kind: type) -> Any:
    """Return a function of C that reads the bytes of an object of a type."""
    if issubclass(kind, _CDATA):
        return ctypes.sizeof
    for base in type_attribute(kind, "__mro__"):
        reader = type_attribute(base, "__dict__").get("__sizeof__")
        if type(reader) is types.MethodDescriptorType:  # written in Python it would be code of the user's
            return lambda value: reader(value) + buffer_bytes(value)
    return object.__sizeof__
