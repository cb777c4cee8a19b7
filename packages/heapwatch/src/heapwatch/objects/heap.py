"""Measure the Python heap by access path, and find the paths that grew.

One walk starts at the run's own objects, the user's modules and classes, and the local variables of all
threads. On request it also visits all libraries and unreferenced objects. Only strings and numbers are kept.
"""

import collections
import contextvars
import functools
import gc
import io
import sys
import types
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, compress, repeat, takewhile
from operator import is_not
from typing import Any

import numpy as np

from ..pytorch import TORCH
from .capacity import ALLOCATED, Bound, Capacities
from .code_lines import OWN_FOLDER, forget_trees, is_library
from .graph_holders import GraphHolder, GraphReport, grad_fn, measure_graphs
from .growth import (
    LIKELY,
    Cause,
    GrowthSources,
    Heap,
    containers,
    gained_entries,
    growing_container,
    grown_paths,
    sources_of,
)
from .owners import CREATE_GRAPH_CYCLE, Owners, resource_causes
from .patterns import newest
from .readers import PRIMITIVE_IDS, SCAN, Kind, Role, frame_locals, gradient_of, type_attribute, type_name
from .storages import StorageKey, is_tensor, shape_of, storage_of
from .walk import Found, Visitor

# Test runners reference every test of a session.
_RUNNERS = ("_pytest", "pluggy", "xdist", "execnet")
_OF_RUNNERS = tuple(f"/site-packages/{name}/" for name in _RUNNERS)
# Paths below this size are not stored by name.
_LEAST_HELD_BYTES = 1_000
# Most containers have fewer entries than this.
_FEW = 4
# The number of autograd graphs whose holder is described.
_MOST_GRAPHS = 4
# Maps ids of types, like `PRIMITIVE_IDS`, to the type with the methods that read the container.
_CONTAINERS: dict[int, Any] = {
    **{id(each): each for each in (list, set, collections.deque)},
    **{id(each): dict for each in (dict, OrderedDict, defaultdict, Counter)},
}


def growth_sources(
    roots: Mapping[str, Any], before: Heap, steps: int, rise_bytes: float, device: str = "cpu"
) -> GrowthSources:
    """Measure the heap and return the holders of the growth. `roots` is as in `measure_heap`."""
    return sources_of(before, measure_heap(roots, before.is_whole, before), steps, rise_bytes, device)


def measure_heap(
    roots: Mapping[str, Any], is_whole: bool, before: Heap | None = None, share: float = 1.0
) -> Heap:
    """Measure the Python heap.

    `roots` maps names to long-lived objects. Objects that are not reachable from them are reported by module,
    class or function. For the objects with most of the growth since `before`, the source of the class is read
    to find their capacity. Containers of more than 1,024 objects are sampled and extrapolated. The
    measurement runs no code of visited objects and keeps no reference to them. `share` is as in `Heap`.

    Cost: 0.3 s, or 3 s for the whole heap, in a process that has imported PyTorch on a busy machine, plus 15
    us per graph node.
    """
    gc.collect()
    TORCH.refresh()
    for each in filter(is_tensor, _tracked() if is_whole else ()):
        # Reading creates the gradient's Python object. Created now, it does not count as growth later.
        gradient_of(each)
    return _Measurement(_tracked(), is_whole).of(roots, before, share)


def _tracked() -> list[Any]:
    """Return all objects that the garbage collector tracks, except for plain tuples.

    A tuple that another thread is building, such as `tuple(generator)`, must have no other reference.
    """
    every = list[Any]()
    chosen = compress(every, map(is_not, map(type, every), repeat(tuple)))
    # The interpreter switches threads only after its own calls and loops. There are none while the tuples are
    # referenced. The second list is new, because `every` contains itself.
    every += chain.from_iterable(map(gc.get_objects, (None,)))
    found = [*chosen]
    every *= 0
    return found


# The name and the object.
_Start = tuple[str, Any]


class _Measurement:
    """One walk over `existing`: the objects tracked by the garbage collector, without plain tuples."""

    def __init__(self, existing: list[Any], is_whole: bool) -> None:
        self._existing, self._is_whole = existing, is_whole
        self._visitor = Visitor(everything=True)
        # Tensors, arrays and nodes that are reachable by name.
        self._reachable: list[Found] = []
        self._variables = set[str]()
        self._storages = set[StorageKey]()
        self._held: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._stores: dict[str, Bound] = {}
        self._entries: dict[str, int] = {}
        self._owners: dict[str, Any] = {}
        self._modules: dict[str, Any] = {}
        self._capacities = Capacities()
        self._files = Counter[str]()
        asyncio = sys.modules.get("asyncio")
        # Another thread may be importing it.
        base = getattr(asyncio, "AbstractEventLoop", ())
        kinds = dict(zip(map(id, map(type, existing)), map(type, existing), strict=True))
        loops = {number for number, kind in kinds.items() if issubclass(kind, base)}
        # Few objects have one of these types, and the filter is fast.
        chosen = loops | _FRAME_OF.keys() | {id(contextvars.Context)}
        self._starting = [*compress(existing, map(chosen.__contains__, map(id, map(type, existing))))]
        self._loops = [each for each in self._starting if id(type(each)) in loops]
        waiting = (frame for each in self._starting if (frame := _waiting_frame(each)) is not None)
        self._calls = Counter(f"calls of {frame.f_code.co_name}" for frame in waiting)

    def of(self, roots: Mapping[str, Any], before: Heap | None, share: float) -> Heap:
        """Measure the heap from `roots`, with `before` as reference."""
        # Skip previous measurements.
        for each in (each for each in self._existing if type(each) is Heap):
            parts = (each.held, each.totals, each.stores, each.entries, each.causes, each.resources)
            inner = (part for whole in parts for part in whole.values())
            self._visitor.seen.update(map(id, (each, *parts, *inner)))
        # An event loop leads to the whole program, so it is visited last.
        self._visitor.seen.update(map(id, self._loops))
        for starts in self._stages(roots):
            for found in self._visitor.visit(self._noted(starts)):
                self._count(found)
        kept, totals = {}, {}
        for device, paths in self._held.items():
            kept[device] = {path: nbytes for path, nbytes in paths.items() if nbytes >= _LEAST_HELD_BYTES}
            totals[device] = sum(paths.values())
        resources, causes = resource_causes(self._existing, before)
        resources |= self._files | self._calls
        graphs = measure_graphs(self._reachable, variables=self._variables)
        if before is not None:
            causes |= self._causes(before, kept, graphs, share)
        named = {name for paths in kept.values() for path in paths for name in containers(path)}
        entries = {name: self._entries[name] for name in named & self._entries.keys()}
        return Heap(kept, totals, graphs, self._is_whole, self._stores, entries, causes, resources, share)

    def _causes(
        self, before: Heap, held: Mapping[str, Mapping[str, float]], graphs: GraphReport, share: float
    ) -> dict[str, Cause]:
        """Find the capacities of the containers that grew, and describe the holders of the growth."""
        grown = dict[str, GraphHolder | None]()
        for device, paths in held.items():
            was = before.held.get(device, {})
            grown |= dict.fromkeys(grown_paths(was, paths, before.entries, self._entries, share))
        for path in grown:
            # Only classes above a growing container bound it. Reading the class of a pandas table would take
            # hours.
            self._find_capacities(growing_container(path, before.entries, self._entries) or "")
        grown |= {each.pattern: each for each in graphs.holders[:_MOST_GRAPHS]}
        owners = Owners(self._owners, self._entries, self._calls, before)
        causes = {path: owners.cause_of(path, graph) for path, graph in grown.items()}
        # Objects of an extension may hold memory that is not seen here.
        gained = gained_entries(before.entries, self._entries, self._holds_objects)
        if gained is not None:
            causes[LIKELY] = owners.cause_of(gained)
        forget_trees()
        return causes

    def _holds_objects(self, path: str) -> bool:
        """Return whether a container holds more than numbers and strings, directly or one level deeper."""
        values = newest(self._owners[path])[1]
        return not all(issubclass(type(each), _PLAIN) for each in (*values, *gc.get_referents(*values)))

    def _stages(self, roots: Mapping[str, Any]) -> Iterator[Iterable[_Start]]:
        """Yield all objects reachable by name, the user's objects before libraries, then the rest."""
        yield roots.items()
        # Globals and classes outlive variables.
        yield chain(self._defined(of_libraries=False), self._running())
        if self._is_whole:
            yield self._defined(of_libraries=True)
            # One at a time: the contents of an exception belong to it, not to the rest.
            yield from ([start] for start in self._nameless())

    def _noted(self, starts: Iterable[_Start]) -> Iterator[_Start]:
        for name, value in starts:
            self._variables.add(name)
            yield name, value

    def _defined(self, of_libraries: bool) -> Iterator[_Start]:
        """Yield the globals and the class attributes of the user's modules or of libraries."""
        read = type_attribute(types.ModuleType, "__dict__")["__dict__"].__get__
        namespaces = [read(m) for m in list(sys.modules.values()) if issubclass(type(m), types.ModuleType)]
        chosen = [namespace for namespace in namespaces if _is_library(namespace) is of_libraries]
        names = {namespace.get("__name__") for namespace in chosen}
        for namespace in chosen:
            name = namespace.get("__name__")
            self._modules[f"module {name}"] = sys.modules.get(name)
            yield from _members(f"module {name}", namespace)
        for each in (each for each in self._existing if issubclass(type(each), type)):
            module = type_attribute(each, "__module__")
            if (module in names) if type(module) is str else of_libraries:
                yield from _members(f"class {module}.{type_name(each)}", type_attribute(each, "__dict__"))

    def _running(self) -> Iterator[_Start]:
        """Yield the variables of functions, the values of context variables, and the event loops."""
        yield from _variables(_frames(self._starting))
        contexts = (each for each in self._starting if type(each) is contextvars.Context)
        pairs = (pair for context in contexts for pair in context.items())
        yield from (("".join(("contextvar ", variable.name)), value) for variable, value in pairs)
        self._visitor.seen.difference_update(map(id, self._loops))
        yield from ((f"event loop {type_name(type(each))}", each) for each in self._loops)

    def _nameless(self) -> Iterator[_Start]:
        """Yield the objects that the garbage collector tracks but no name reaches."""
        self._skip_unsampled()
        for value in self._existing:
            if id(value) not in self._visitor.seen and not is_tensor(value):
                yield f"<{type_name(type(value))} that nothing names>", value
        self._skip_unsampled()
        # Parameters precede their gradients, so that each gradient has the name of its parameter.
        for value in sorted(filter(is_tensor, self._existing), key=lambda each: gradient_of(each) is None):
            if id(value) not in self._visitor.seen:
                yield f"<{_kind_of(value)}, held by C++ only>", value

    def _skip_unsampled(self) -> None:
        """Skip all that belongs to elements outside a sample. The elements in the sample represent it."""
        seen, found = self._visitor.seen, self._visitor.sampled_containers
        while found:
            held = (each for each in gc.get_referents(*found) if id(type(each)) not in PRIMITIVE_IDS)
            new = {id(each): each for each in held if id(each) not in seen}
            # Types and modules lead to the whole program.
            found = [each for each in new.values() if not issubclass(type(each), (type, types.ModuleType))]
            seen.update(map(id, found))

    def _count(self, found: Found) -> None:
        """Add the bytes of one object."""
        value = found.value
        kind = self._visitor.children.kind_of(value)
        self._owners[found.pattern] = value
        self._count_stores(found, kind)
        self._count_entries(found, kind)
        if issubclass(kind.type, io.FileIO):
            self._files[found.pattern] += round(found.weight)
        if found.role is not Role.plain and not found.pattern.startswith("<"):
            self._reachable.append(found)
        if id(kind.type) in PRIMITIVE_IDS:
            self._held["cpu"][found.pattern] += found.weight * kind.size(value)
        elif found.role is Role.leaf:
            storage = storage_of(value)
            if storage is not None and storage.key not in self._storages:
                self._storages.add(storage.key)
                self._held[storage.key[0].partition(":")[0]][found.pattern] += found.weight * storage.nbytes
        elif not issubclass(kind.type, (type, types.ModuleType)):
            # Types and modules are starting points of the walk.
            nbytes = kind.size(value) + self._unvisited_bytes(value, kind)
            self._held["cpu"][found.pattern] += found.weight * nbytes

    def _count_stores(self, found: Found, kind: Kind) -> None:
        """Record the fill level of a container with its own capacity. Others are read only if they grew."""
        value, pattern = found.value, found.pattern
        if issubclass(kind.type, collections.deque):
            most = _MAXLEN(value)
            if most is not None:
                self._add_store(pattern, collections.deque.__len__(value), most, "maxlen")
        elif issubclass(kind.type, functools._lru_cache_wrapper):
            cache = functools._lru_cache_wrapper.cache_info(value)
            if cache.maxsize is not None:
                self._add_store(pattern, cache.currsize, cache.maxsize, "maxsize")
        elif issubclass(kind.type, (list, np.ndarray)) and (empty := _empty_slots(value)):
            self._add_store(pattern, len(value) - empty, len(value), ALLOCATED)

    def _add_store(self, pattern: str, held: int, capacity: int, limit: str) -> None:
        """Record the fill level of a container. Containers with the same pattern are added up."""
        _, known_held, known_capacity, _ = self._stores.get(pattern, (pattern, 0, 0, limit))
        self._stores[pattern] = Bound(pattern, known_held + held, known_capacity + capacity, limit)

    def _find_capacities(self, path: str) -> None:
        """Record the fill level of a container at a path if the code of an object on the path bounds it."""
        for start, owner in (*self._owners.items(), *self._modules.items()):
            if path.startswith(start) and path[len(start) :][:1] in ("", ".", "["):
                for bound in self._capacities.of(owner):
                    known = self._stores.setdefault(f"{start}{bound.path}", bound)
                    # If several numbers bound it, the relevant one is the next that the length will reach.
                    is_next = known.held >= known.capacity or bound.held < bound.capacity < known.capacity
                    # A list may also end with `None` by chance.
                    if is_next or known.limit == ALLOCATED:
                        self._stores[f"{start}{bound.path}"] = bound

    def _count_entries(self, found: Found, kind: Kind) -> None:
        """Record the number of entries in a container."""
        base = _CONTAINERS.get(id(kind.type))
        if base is not None and base.__len__(found.value) >= _FEW:
            length = round(found.weight * base.__len__(found.value))
            self._entries[found.pattern] = self._entries.get(found.pattern, 0) + length

    def _unvisited_bytes(self, value: Any, kind: Kind) -> float:
        """Return the bytes of objects that the walk skips: each number and text once, and the `__dict__`."""
        seen, held, total = self._visitor.seen, gc.get_referents(value), 0.0
        getter = kind.dictionary
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
                total += stride * self._visitor.children.kind_of(each).size(each)
        return total


_PLAIN = (
    *(int, float, complex, str, bytes, type(None), type, np.generic),
    *(list, tuple, set, frozenset, dict, collections.deque),
)
_FRAME_OF: dict[int, Any] = {
    id(types.CoroutineType): types.CoroutineType.cr_frame.__get__,
    id(types.GeneratorType): types.GeneratorType.gi_frame.__get__,
    id(types.AsyncGeneratorType): types.AsyncGeneratorType.ag_frame.__get__,
}
_MAXLEN: Any = collections.deque.maxlen.__get__  # pyright: ignore[reportAttributeAccessIssue]


def _empty_slots(value: Any) -> int:
    """Return the number of slots at the end of a list or an array of objects that are not used yet."""
    is_array = type(value) is np.ndarray and value.dtype == object and value.ndim == 1
    slots = value[::-1] if is_array else reversed(value) if type(value) is list else ()
    return sum(1 for _ in takewhile(lambda slot: slot is None or (type(slot) is int and slot == 0), slots))


def _kind_of(value: Any) -> str:
    """Return the type, shape and producing operation of a tensor as text."""
    node, gradient = grad_fn(value), gradient_of(value)
    made_by = "leaf" if node is None else type_name(type(node))
    # `backward(create_graph=True)` leaves such a pair: a cycle through C++ that `gc.collect` cannot see.
    is_cycle = gradient is not None and grad_fn(gradient) is not None
    cycle = f", whose grad has grad_fn: {CREATE_GRAPH_CYCLE}" if is_cycle else ""
    return f"{type_name(type(value))} {shape_of(value)} from {made_by}{cycle}"


def _waiting_frame(value: Any) -> types.FrameType | None:
    """Return the frame of a coroutine or generator that has not ended, or `None` for any other object."""
    read = _FRAME_OF.get(id(type(value)))
    return None if read is None else read(value)


def _frames(existing: Iterable[Any]) -> Iterator[types.FrameType]:
    """Yield the frames of running functions, then the frames of suspended coroutines and generators.

    The innermost function of each thread comes first. Frames of heapwatch and of test runners are omitted.
    """
    waiting = filter(None, map(_waiting_frame, existing))
    # Ids, because a frame that references itself is garbage later.
    seen = set[int]()
    start = frame = None
    for start in (*sys._current_frames().values(), *waiting):
        frame = start
        while frame is not None and id(frame) not in seen:
            seen.add(id(frame))
            file = frame.f_code.co_filename
            is_hidden = file.startswith((OWN_FOLDER, "<frozen runpy>"))
            if not is_hidden and not any(part in file for part in _OF_RUNNERS):
                yield frame
            frame = frame.f_back
    # They may be the frame of this generator.
    del start, frame


def _variables(frames: Iterable[types.FrameType]) -> Iterator[tuple[str, Any]]:
    # Libraries are called with objects of the user's modules, so their variables come last.
    for frame in sorted(frames, key=lambda each: is_library(each.f_code.co_filename)):
        function = frame.f_code.co_name
        yield from ((f"frame {function} {name}", value) for name, value in frame_locals(frame))


def _members(
    name: str, namespace: dict[str, Any] | types.MappingProxyType[str, Any]
) -> Iterator[tuple[str, Any]]:
    # A copy, because another thread may define a name at any time.
    yield from ((f"{name}.{key}", value) for key, value in namespace.copy().items())


def _is_library(namespace: dict[str, Any]) -> bool:
    """Return whether a module is installed, part of Python, or part of heapwatch."""
    file = namespace.get("__file__")
    is_installed = type(file) is not str or is_library(file) or file.startswith(OWN_FOLDER)
    # In a notebook, `__main__` has no file.
    return is_installed and namespace.get("__name__") != "__main__"
