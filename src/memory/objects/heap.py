"""Measure how many bytes the whole Python heap holds, by the path that leads to them.

For when memory grows. One walk begins at the run's own objects, then at the local variables of all threads,
and at the globals and classes of the user's modules; on request also at those of all libraries, and ends then
with what the garbage collector knows and none of these reach. Only texts and numbers are kept.
"""

import ctypes
import gc
import sys
import sysconfig
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .children import Role, dictionary_getter
from .graph_holders import GraphReport, measure_graphs
from .readers import PRIMITIVE_IDS, SCAN, frame_locals, type_attribute, type_name
from .storages import StorageKey, buffer_bytes, storage_of
from .walk import Found, Visitor

_OWN_FOLDER = str(Path(__file__).parents[1])
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_LEAST_BYTES = 1_000  # paths that hold less are not kept by name
_CDATA: Any = ctypes.Array.__mro__[1]


@dataclass(frozen=True, slots=True)
class Heap:
    """Bytes that Python objects hold: their own, and the memory of their tensors, arrays and buffers."""

    held: dict[str, dict[str, float]]
    """By kind of device ("cpu", "cuda"), then by path, numbers of elements as `[*]`, without small paths."""

    totals: dict[str, float]
    """By kind of device, small paths included."""

    graphs: GraphReport
    """The autograd graphs, by what holds them."""

    is_whole: bool
    """Whether libraries, and what nothing names, are included."""


def measure_heap(roots: Mapping[str, Any], is_whole: bool) -> Heap:
    """Return what the Python heap holds now.

    Containers of more than 1,024 objects are sampled and extrapolated. Runs no code of what it visits, and
    keeps none of it.

    Args:
        roots: The run's own objects by name; what they reach counts under their names.
        is_whole: Whether to look at libraries, and at what nothing names, too.

    Cost: 0.3 s, for the whole heap 3 s, in a process that has imported PyTorch, on a busy machine; and 15 us
    a node of a graph.
    """
    gc.collect()
    existing = gc.get_objects()
    return _Measurement(existing, is_whole).of(roots)


def running_variables() -> Iterator[tuple[types.FrameType, str, Any]]:
    """Yield the local variables of the running functions of all threads, but for those of this package."""
    for innermost in sys._current_frames().values():
        frame: types.FrameType | None = innermost
        while frame is not None:
            if not frame.f_code.co_filename.startswith(_OWN_FOLDER):
                for variable, value in frame_locals(frame):
                    yield frame, variable, value
            frame = frame.f_back


class _Measurement:
    """One walk over the heap.

    Args:
        existing: All that the garbage collector knows.
        is_whole: Whether libraries, and what nothing names, are included.
    """

    def __init__(self, existing: list[Any], is_whole: bool) -> None:
        self._existing, self._is_whole = existing, is_whole
        self._visitor = Visitor(everything=True)
        self._reachable: list[Found] = []  # tensors, arrays and nodes that a name leads to
        self._storages = set[StorageKey]()
        self._size_readers: dict[int, Callable[[Any], int]] = {}  # by the id of the type, as below
        self._dictionaries: dict[int, Any] = {}
        self._held: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))

    def of(self, roots: Mapping[str, Any]) -> Heap:
        """Return what is held."""
        for former in (each for each in self._existing if type(each) is Heap):
            own = (former, former.held, former.totals, *former.held.values())
            self._visitor.seen.update(map(id, own))
        for found in self._visitor.visit(self._starts(roots)):
            self._count(found)
        totals = {device: sum(paths.values()) for device, paths in self._held.items()}
        kept = {
            device: {path: nbytes for path, nbytes in paths.items() if nbytes >= _LEAST_BYTES}
            for device, paths in self._held.items()
        }
        holders, is_complete = measure_graphs(self._reachable)
        return Heap(kept, totals, GraphReport(holders, not is_complete), self._is_whole)

    def _starts(self, roots: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield what a program can reach by name, the user's own before that of libraries; then the rest."""
        yield from roots.items()
        for frame, variable, value in running_variables():
            yield f"frame {frame.f_code.co_name} {variable}", value
        modules = [m for m in list(sys.modules.values()) if issubclass(type(m), types.ModuleType)]
        namespaces = [types.ModuleType.__dict__["__dict__"].__get__(module) for module in modules]
        classes = [each for each in self._existing if issubclass(type(each), type)]
        for of_libraries in (False, True) if self._is_whole else (False,):
            chosen = [namespace for namespace in namespaces if _is_library(namespace) is of_libraries]
            names = {namespace.get("__name__") for namespace in chosen}
            for namespace in chosen:
                yield from _members(f"module {namespace.get('__name__')}", namespace)
            for each in classes:
                module = type_attribute(each, "__module__")
                if (module in names) if type(module) is str else of_libraries:
                    yield from _members(f"class {module}.{type_name(each)}", type_attribute(each, "__dict__"))
        for value in self._existing if self._is_whole else ():
            if (
                id(value) not in self._visitor.seen and type(value) is not tuple
            ):  # one that matters has an owner
                yield f"<{type_name(type(value))} that nothing names>", value

    def _count(self, found: Found) -> None:
        """Add the bytes of one object."""
        value, kind = found.value, type(found.value)
        if found.role is not Role.plain and not found.pattern.startswith("<"):
            self._reachable.append(found)
        if id(kind) in PRIMITIVE_IDS:
            self._held["cpu"][found.pattern] += found.weight * self._size(value)
        elif found.role is Role.leaf:
            storage = storage_of(value)
            if storage is not None and storage.key not in self._storages:
                self._storages.add(storage.key)
                self._held[storage.device.partition(":")[0]][found.pattern] += found.weight * storage.nbytes
        elif not issubclass(kind, (type, types.ModuleType)):  # which are starts themselves
            nbytes = self._size(value) + self._unvisited_bytes(value)
            self._held["cpu"][found.pattern] += found.weight * nbytes

    def _unvisited_bytes(self, value: Any) -> float:
        """Return the bytes of what an object refers to and the walk passes over.

        These are numbers and texts, each counted once, and the `__dict__` whose values the walk visits.
        """
        kind, seen, held, total = type(value), self._visitor.seen, gc.get_referents(value), 0.0
        if id(kind) not in self._dictionaries:
            # Asking a function for its `__dict__` would make one.
            self._dictionaries[id(kind)] = None if kind is types.FunctionType else dictionary_getter(kind)
        getter = self._dictionaries[id(kind)]
        if getter is not None and any(type(each) is dict for each in held):
            own = getter.__get__(value)
            if type(own) is dict and id(own) not in seen:
                seen.add(id(own))
                held += gc.get_referents(own)
                total += dict.__sizeof__(own)
        stride = max(1, -(-len(held) // SCAN))
        for each in held[::stride]:
            if id(type(each)) in PRIMITIVE_IDS and id(each) not in seen:
                seen.add(id(each))
                total += stride * self._size(each)
        return total

    def _size(self, value: Any) -> int:
        """Return an object's own bytes, and those of a buffer that it owns; only C code is asked."""
        kind = type(value)
        if id(kind) not in self._size_readers:
            self._size_readers[id(kind)] = _size_reader(kind)
        return self._size_readers[id(kind)](value)


def _members(name: str, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in list(namespace.items()):
        yield f"{name}.{key}", value


def _is_library(namespace: dict[str, Any]) -> bool:
    """Return whether a module is not the user's own: installed, or part of Python."""
    file = namespace.get("__file__")
    is_installed = type(file) is not str or file.startswith(_LIBRARIES)
    return is_installed and namespace.get("__name__") != "__main__"  # which has no file in a notebook


def _size_reader(kind: type) -> Callable[[Any], int]:
    """Return a function of C that reads the bytes of an object of a type."""
    if issubclass(kind, _CDATA):
        return ctypes.sizeof
    for base in type_attribute(kind, "__mro__"):
        reader = type_attribute(base, "__dict__").get("__sizeof__")
        if type(reader) is types.MethodDescriptorType:  # written in Python it would be code of the user's
            return lambda value: reader(value) + buffer_bytes(value)
    return object.__sizeof__
