"""Measure the Python heap by access path, and find the paths that grew.

One walk starts at the run's own objects, the local variables of all threads, and the user's modules. On
request it also visits all libraries and unreferenced objects. Only texts and numbers are kept.
"""

import collections
import contextlib
import functools
import gc
import re
import sys
import sysconfig
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..texts import count_text
from .capacity import Bound, Capacities
from .graph_holders import GraphReport, grad_fn, measure_graphs
from .readers import PRIMITIVE_IDS, SCAN, Kind, Role, frame_locals, gradient_of, type_attribute, type_name
from .storages import StorageKey, is_tensor, shape_of, storage_of
from .walk import Found, Visitor

NATIVE = "no Python object holds it: native memory of a library or an extension"
TOO_SMALL = "too small to name yet"
ELSEWHERE = "neither the run nor the user's own modules hold it: the whole Python heap is searched next"

OWN_FOLDER = str(Path(__file__).parents[1])
LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
# Test runners reference every test of a session.
_RUNNERS = ("_pytest", "pluggy", "xdist", "execnet")
_INSTALLED = ("/site-packages/", "/dist-packages/")
_OF_RUNNERS = tuple(f"/site-packages/{name}/" for name in _RUNNERS)
# Paths below this size are not stored by name.
_LEAST_HELD_BYTES = 1_000
_TOP = 3
# Smaller growth is noise in any run.
_LEAST_BYTES = 20_000
# Other holders are reported only from this share of the largest holder's growth.
_LEAST_SHARE = 0.1
# The approximate size of a graph node.
_NODE_BYTES = 200
# Below this share of the growth, the holder counts as not found.
_EXPLAINED = 0.2
# Growth counts as filling if less than this share of it lies elsewhere.
_MINOR = 0.2
# Matches the steps of a path into a container.
_STEP_INTO = re.compile(r"\[|\.<key")
# Most containers have fewer entries than this.
_FEW = 4
# Maps ids of types, like `PRIMITIVE_IDS`, to the type with the methods that read the container.
_CONTAINERS: dict[int, Any] = {
    **{id(each): each for each in (list, set, collections.deque)},
    **{id(each): dict for each in (dict, collections.OrderedDict, collections.defaultdict)},
}
_HOLDER = re.compile(r".*?(?= holds | -> |: |$)")


@dataclass(frozen=True, slots=True)
class Heap:
    """Bytes of Python objects: their own size, and the memory of their tensors, arrays and buffers."""

    held: dict[str, dict[str, float]]
    """By kind of device ("cpu", "cuda"), then by path. Indices become `[*]`, and small paths are omitted."""
    totals: dict[str, float]
    """By kind of device, including small paths."""
    graphs: GraphReport
    is_whole: bool
    """Whether libraries and unreferenced objects are included."""
    stores: dict[str, Bound]
    """Bounded containers by path. A bound in an owner's code is included only for paths that grew."""
    entries: dict[str, "Entries"]
    """Containers on the paths in `held`, by path."""


class Entries(NamedTuple):
    """Entries of the containers at one path."""

    length: int
    container: str
    """Type of the container."""
    newest: str
    """Type of the newest entry, or of its key for a dict."""

    def text(self) -> str:
        """Return text such as `list of 120 Tensor` or `dict of 120 by int`."""
        return f"{self.container} of {self.length:,} {self.newest}"


@dataclass(frozen=True, slots=True)
class GrowthSources:
    """Holders of the memory that grew."""

    lines: tuple[str, ...]
    """One line per likely holder, most likely first."""
    is_named: bool = True
    """Whether the lines include a holder, or rule out Python objects with certainty."""
    is_filling: bool = False
    """Whether the largest holder is a container below its capacity."""

    @property
    def holder(self) -> str | None:
        """The path of the most likely holder, without numbers, or `None` if unknown."""
        found = _HOLDER.match(self.lines[0]) if self.is_named and self.lines else None
        return None if found is None else found[0]


def growth_sources(
    roots: Mapping[str, Any], before: Heap, steps: int, rise_bytes: float, device: str = "cpu"
) -> GrowthSources:
    """Measure the heap and return the holders of the growth. `roots` is as in `measure_heap`."""
    return sources_of(before, measure_heap(roots, before.is_whole, before), steps, rise_bytes, device)


def sources_of(before: Heap, now: Heap, steps: int, rise_bytes: float, device: str = "cpu") -> GrowthSources:
    """Return the holders of the growth between two measurements.

    Args:
        before: Heap when growth was first suspected, or when a holder was last found.
        now: Current heap, measured with `before` as reference.
        steps: Agent steps between the measurements.
        rise_bytes: Growth of the counter that raised the suspicion.
        device: Kind of device whose memory grew, "cpu" or "cuda".

    Returns:
        Native memory is reported only if the whole heap was measured and did not grow. If `before` is not the
        whole heap and does not explain the growth, the only line is `ELSEWHERE`.
    """
    least = max(_LEAST_BYTES, _EXPLAINED * rise_bytes)
    risen = now.totals.get(device, 0.0) - before.totals.get(device, 0.0)
    lines = _grown_graphs(before.graphs, now.graphs, max(1, steps), least)
    if lines or risen >= _EXPLAINED * rise_bytes:
        paths = _grown_paths(before.held.get(device, {}), now.held.get(device, {}))
        filling = {path: _filling(path, before, now, max(1, steps)) for path in paths}
        # Containers that are filling come last.
        named = sorted(paths, key=lambda path: filling[path] is not None)
        for path in named:
            more = f"{path} holds {paths[path] / 1e6:,.2f} MB more{_more_entries(path, before, now)}"
            lines.append(filling[path] or more)
        other = sum(paths[path] for path in named if filling[path] is None)
        is_filling = bool(named) and len(lines) == len(named) and other < _MINOR * sum(paths.values())
        found = GrowthSources(tuple(lines), is_filling=is_filling)
        return found if lines else GrowthSources((TOO_SMALL,), is_named=False)
    if rise_bytes < _LEAST_BYTES or not now.is_whole:
        return GrowthSources((TOO_SMALL if rise_bytes < _LEAST_BYTES else ELSEWHERE,), is_named=False)
    part = f"the Python heap grew by {max(risen, 0) / 1e6:.2f} of {rise_bytes / 1e6:.2f} MB"
    return GrowthSources((f"{NATIVE} ({part})",))


def _grown_graphs(before: GraphReport, after: GraphReport, steps: int, least: float) -> list[str]:
    """Return the largest new or grown graphs of at least `least` bytes, with their growth."""
    earlier = {} if after.truncated else {holder.pattern: holder for holder in before.holders}
    lines = []
    for holder in after.holders:
        if max(holder.nbytes, holder.nodes * _NODE_BYTES) < least:
            continue
        if holder.pattern not in earlier:
            lines.append(holder.text())
        else:
            growth = holder.growth_since(earlier[holder.pattern], steps)
            if growth.nodes_per_step > 0 or growth.bytes_per_step > 0:
                lines.append(f"{holder.text()}; {growth.text()}")
    return lines[:_TOP]


def _filling(path: str, before: Heap, now: Heap, steps: int) -> str | None:
    """Return the fill level of the container at a path, or `None` if it is full or has no capacity."""
    name = max((name for name in now.stores if _lies_in(path, name)), key=len, default=None)
    if name is None:
        return None
    store = now.stores[name]
    if name in before.stores:
        added = store.held - before.stores[name].held
    else:
        lengths = [heap.entries[name].length if name in heap.entries else 0 for heap in (before, now)]
        added = store.held - store.held * lengths[0] / max(1, lengths[1])
    if added <= 0 or store.held >= store.capacity:
        return None
    left = (store.capacity - store.held) * steps / added
    full = f"full in about {count_text(round(left), 'step')}"
    return f"{path}: {name} has {store.held:,} of {store.capacity:,} ({store.limit}), {full}"


def _lies_in(path: str, name: str) -> bool:
    """Return whether a path belongs to a container or to its contents."""
    return path == name or path.startswith((f"{name}[", f"{name}.<key"))


def _more_entries(path: str, before: Heap, now: Heap) -> str:
    """Return the outermost container on a path that has gained entries, as text, or ""."""
    for name in _containers(path):
        if name in now.entries:
            entries = now.entries[name]
            added = entries.length - (before.entries[name].length if name in before.entries else 0)
            if added > 0:
                return f"; {name}: {entries.text()}, {added:,} more"
    return ""


def _containers(path: str) -> list[str]:
    """Return the containers on a path and the path itself, outermost first.

    >>> _containers("agent.episodes[*]['obs']")
    ['agent.episodes', 'agent.episodes[*]', "agent.episodes[*]['obs']"]
    """
    return [*(path[: step.start()] for step in _STEP_INTO.finditer(path)), path]


def _grown_paths(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the growth in bytes of the paths that grew most, largest first."""
    growth = {path: nbytes - before.get(path, 0.0) for path, nbytes in after.items()}
    largest = sorted(growth, key=lambda path: -growth[path])[:_TOP]
    least = max(_LEAST_BYTES, _LEAST_SHARE * growth[largest[0]]) if largest else 0.0
    return {path: growth[path] for path in largest if growth[path] > least}


def measure_heap(roots: Mapping[str, Any], is_whole: bool, before: Heap | None = None) -> Heap:
    """Measure the Python heap.

    `roots` maps names to long-lived objects. Objects that are not reachable from them are reported by module,
    class or function. For the objects with most of the growth since `before`, the source of the class is read
    to find their capacity. Containers of more than 1,024 objects are sampled and extrapolated. The
    measurement runs no code of visited objects and keeps no reference to them.

    Cost: 0.3 s, or 3 s for the whole heap, in a process that has imported PyTorch on a busy machine, plus 15
    us per graph node.
    """
    gc.collect()
    for each in gc.get_objects() if is_whole else ():
        if is_tensor(each):
            # Reading creates the gradient's Python object. Created now, it does not count as growth later.
            gradient_of(each)
    return _Measurement(gc.get_objects(), is_whole).of(roots, before)


class _Measurement:
    """One walk over `existing`: all objects tracked by the garbage collector."""

    def __init__(self, existing: list[Any], is_whole: bool) -> None:
        self._existing, self._is_whole = existing, is_whole
        self._visitor = Visitor(everything=True)
        # Tensors, arrays and nodes that are reachable by name.
        self._reachable: list[Found] = []
        self._variables = set[str]()
        self._storages = set[StorageKey]()
        self._held: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._stores: dict[str, Bound] = {}
        self._entries: dict[str, Entries] = {}
        self._owners: dict[str, Any] = {}

    def of(self, roots: Mapping[str, Any], before: Heap | None) -> Heap:
        """Measure the heap from `roots`, with `before` as reference."""
        for each in self._existing:
            # This is a previous measurement.
            if type(each) is Heap:
                parts = (each.held, each.totals, each.stores, each.entries)
                inner = (part for whole in parts for part in whole.values())
                self._visitor.seen.update(map(id, (each, *parts, *inner)))
        for start in self._starts(roots):
            self._variables.add(start[0])
            for found in self._visitor.visit([start]):
                self._count(found)
        kept, totals = {}, {}
        for device, paths in self._held.items():
            kept[device] = {path: nbytes for path, nbytes in paths.items() if nbytes >= _LEAST_HELD_BYTES}
            totals[device] = sum(paths.values())
        was = {} if before is None else before.held
        for device in was.keys() & kept.keys():
            for path in _grown_paths(was[device], kept[device]):
                self._find_capacities(path)
        named = {name for paths in kept.values() for path in paths for name in _containers(path)}
        entries = {name: self._entries[name] for name in named & self._entries.keys()}
        # A variable is rebound at each step. Attributes and containers persist, so they come first.
        graphs = measure_graphs(sorted(self._reachable, key=lambda each: each.path in self._variables))
        return Heap(kept, totals, graphs, self._is_whole, self._stores, entries)

    def _starts(self, roots: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield all objects reachable by name, the user's objects before libraries, then the rest."""
        yield from roots.items()
        frames = _frames()
        yield from _variables(frames, of_libraries=False)
        modules = [m for m in list(sys.modules.values()) if issubclass(type(m), types.ModuleType)]
        read = type_attribute(types.ModuleType, "__dict__")["__dict__"].__get__
        namespaces = [read(module) for module in modules]
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
            # Libraries are called with objects of the user's modules, so their variables come last.
            if not of_libraries:
                yield from _variables(frames, of_libraries=True)
        if self._is_whole:
            yield from self._nameless()

    def _nameless(self) -> Iterator[tuple[str, Any]]:
        """Yield the objects that the garbage collector tracks but no name reaches."""
        others = [each for each in self._existing if not is_tensor(each)]
        for value in others:
            # The owner of a tuple has been visited.
            if id(value) not in self._visitor.seen and type(value) is not tuple:
                yield f"<{type_name(type(value))} that nothing names>", value
        # These are elements outside a sample.
        of_python = set(map(id, gc.get_referents(*others)))
        tensors = [each for each in self._existing if is_tensor(each) and id(each) not in of_python]
        # Parameters precede their gradients, so that each gradient has the name of its parameter.
        for value in sorted(tensors, key=lambda each: gradient_of(each) is None):
            if id(value) not in self._visitor.seen:
                yield f"<{_kind_of(value)}, held by C++ only>", value

    def _count(self, found: Found) -> None:
        """Add the bytes of one object."""
        value = found.value
        kind = self._visitor.children.kind_of(value)
        self._count_stores(found, kind)
        self._count_entries(found, kind)
        if found.role is not Role.plain and not found.pattern.startswith("<"):
            self._reachable.append(found)
        if id(kind.type) in PRIMITIVE_IDS:
            self._held["cpu"][found.pattern] += found.weight * kind.size(value)
        elif found.role is Role.leaf:
            storage = storage_of(value)
            if storage is not None and storage.key not in self._storages:
                self._storages.add(storage.key)
                self._held[storage.device.partition(":")[0]][found.pattern] += found.weight * storage.nbytes
        elif not issubclass(kind.type, (type, types.ModuleType)):
            # Types and modules are starting points of the walk.
            nbytes = kind.size(value) + self._unvisited_bytes(value)
            self._held["cpu"][found.pattern] += found.weight * nbytes

    def _count_stores(self, found: Found, kind: Kind) -> None:
        """Record the fill level of a container with its own capacity. Others are read only if they grew."""
        value, pattern = found.value, found.pattern
        if issubclass(kind.type, collections.deque):
            most = _MAXLEN(value)
            if most is not None:
                self._stores[pattern] = Bound(pattern, collections.deque.__len__(value), most, "maxlen")
        elif issubclass(kind.type, functools._lru_cache_wrapper):
            cache = functools._lru_cache_wrapper.cache_info(value)
            if cache.maxsize is not None:
                self._stores[pattern] = Bound(pattern, cache.currsize, cache.maxsize, "maxsize")
        elif kind.role is Role.plain:
            self._owners[pattern] = value

    def _find_capacities(self, path: str) -> None:
        """Record the fill level of a container at a path if the code of an object on the path bounds it."""
        capacities = Capacities()
        for start, owner in self._owners.items():
            if path.startswith(start) and path[len(start) :][:1] in ("", ".", "["):
                for bound in capacities.of(owner):
                    known = self._stores.setdefault(f"{start}{bound.path}", bound)
                    # If several numbers bound it, the relevant one is the next that the length will reach.
                    if known.held >= known.capacity or bound.held < bound.capacity < known.capacity:
                        self._stores[f"{start}{bound.path}"] = bound

    def _count_entries(self, found: Found, kind: Kind) -> None:
        """Record the number of entries in a container."""
        base = _CONTAINERS.get(id(kind.type))
        if base is None or base.__len__(found.value) < _FEW:
            return
        before = self._entries.get(found.pattern)
        length = round(found.weight * base.__len__(found.value)) + (before.length if before else 0)
        what = before.newest if before else ""
        # The container is empty, or another thread is changing it.
        with contextlib.suppress(IndexError, RuntimeError, StopIteration):
            what = _newest_of(base, found.value)
        self._entries[found.pattern] = Entries(length, type_name(kind.type), what)

    def _unvisited_bytes(self, value: Any) -> float:
        """Return the bytes of objects that the walk skips: each number and text once, and the `__dict__`."""
        seen, held, total = self._visitor.seen, gc.get_referents(value), 0.0
        getter = self._visitor.children.kind_of(value).dictionary
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


_MAXLEN: Any = collections.deque.maxlen.__get__  # pyright: ignore[reportAttributeAccessIssue]


def _newest_of(base: Any, value: Any) -> str:
    """Return the type of a container's newest entry, or of its key for a mapping."""
    if base is dict:
        return f"by {type_name(type(next(dict.__reversed__(value))))}"
    return type_name(type(next(set.__iter__(value)) if base is set else base.__getitem__(value, -1)))


def _kind_of(value: Tensor) -> str:
    """Return the type, shape and producing operation of a tensor as text."""
    node, gradient = grad_fn(value), gradient_of(value)
    made_by = "leaf" if node is None else type_name(type(node))
    # `backward(create_graph=True)` leaves such a pair: a cycle through C++ that `gc.collect` cannot see.
    is_cycle = gradient is not None and grad_fn(gradient) is not None
    cycle = ", whose grad has grad_fn: a create_graph cycle" if is_cycle else ""
    return f"{type_name(type(value))} {shape_of(value)} from {made_by}{cycle}"


def _frames() -> list[types.FrameType]:
    """Return the frames of all threads, innermost first, without frames of heapwatch and of test runners."""
    found = []
    for frame in sys._current_frames().values():
        while frame is not None:
            file = frame.f_code.co_filename
            is_hidden = file.startswith((OWN_FOLDER, "<frozen runpy>"))
            if not is_hidden and not any(part in file for part in _OF_RUNNERS):
                found.append(frame)
            frame = frame.f_back
    return found


def _variables(frames: Iterable[types.FrameType], of_libraries: bool) -> Iterator[tuple[str, Any]]:
    for frame in frames:
        if is_library(frame.f_code.co_filename) is of_libraries:
            function = frame.f_code.co_name
            yield from ((f"frame {function} {name}", value) for name, value in frame_locals(frame))


def _members(name: str, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((f"{name}.{key}", value) for key, value in list(namespace.items()))


def is_library(file: str) -> bool:
    """Return whether a file is part of Python or installed, also in another environment."""
    return file.startswith(LIBRARIES) or any(folder in file for folder in _INSTALLED)


def _is_library(namespace: dict[str, Any]) -> bool:
    """Return whether a module is installed or part of Python."""
    file = namespace.get("__file__")
    is_installed = type(file) is not str or is_library(file)
    # In a notebook, `__main__` has no file.
    return is_installed and namespace.get("__name__") != "__main__"
