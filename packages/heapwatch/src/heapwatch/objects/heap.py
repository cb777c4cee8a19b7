"""Measure what the Python heap holds, by the path that leads to it, and name what grew.

One walk begins at the run's own objects, the local variables of all threads, and the user's modules; on
request also at all libraries, and at what no name leads to. Only texts and numbers are kept.
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
_RUNNERS = ("_pytest", "pluggy", "xdist", "execnet")  # they hold every test of a session
_INSTALLED = ("/site-packages/", "/dist-packages/")
_OF_RUNNERS = tuple(f"/site-packages/{name}/" for name in _RUNNERS)
_LEAST_HELD_BYTES = 1_000  # paths that hold less are not kept by name
_TOP = 3
_LEAST_BYTES = 20_000  # growth below this is noise of any run
_LEAST_SHARE = 0.1  # of the largest holder's growth, below which another one is not worth a line
_NODE_BYTES = 200  # of one node of a graph, about
_EXPLAINED = 0.2  # share of the growth below which what holds it is not found yet
_MINOR = 0.2  # if less than this share of the growth lies elsewhere, the growth counts as filling
_STEP_INTO = re.compile(r"\[|\.<key")  # of a path, into a container
_FEW = 4  # entries, of which most containers have fewer
_CONTAINERS: dict[int, Any] = {
    **{id(each): each for each in (list, set, collections.deque)},
    **{id(each): dict for each in (dict, collections.OrderedDict, collections.defaultdict)},
}  # by id, as `PRIMITIVE_IDS`: the type whose methods read it
_HOLDER = re.compile(r".*?(?= holds | -> |: |$)")  # in the line of a holder


@dataclass(frozen=True, slots=True)
class Heap:
    """Bytes that Python objects hold: their own, and the memory of their tensors, arrays and buffers."""

    held: dict[str, dict[str, float]]
    """By kind of device ("cpu", "cuda"), then by path, numbers of elements as `[*]`, without small paths."""
    totals: dict[str, float]
    """By kind of device, small paths included."""
    graphs: GraphReport
    is_whole: bool
    """Whether libraries, and what nothing names, are included."""
    stores: dict[str, Bound]
    """Containers that have a capacity, by path; those of an object only where it was asked what grew."""
    entries: dict[str, "Entries"]
    """Containers on the way to what is `held`, by path."""


class Entries(NamedTuple):
    """What the containers of one path have in them."""

    length: int
    container: str
    """Type of the container."""
    newest: str
    """Type of the newest entry; of a dict, that of its key."""

    def text(self) -> str:
        """Return it as `list of 120 Tensor` or `dict of 120 by int`."""
        return f"{self.container} of {self.length:,} {self.newest}"


@dataclass(frozen=True, slots=True)
class GrowthSources:
    """What holds the memory that grew."""

    lines: tuple[str, ...]
    """One for each likely holder, the surest first."""
    is_named: bool = True
    """Whether they name a holder, or say for certain that nobody in Python is one."""
    is_filling: bool = False
    """Whether the largest holder is a container that is not full yet."""

    @property
    def holder(self) -> str | None:
        """The path of the surest holder, without numbers; `None` without a name."""
        found = _HOLDER.match(self.lines[0]) if self.is_named and self.lines else None
        return None if found is None else found[0]


def growth_sources(
    roots: Mapping[str, Any], before: Heap, steps: int, rise_bytes: float, device: str = "cpu"
) -> GrowthSources:
    """Measure the heap and return what holds the memory that grew; `roots` as in `measure_heap`."""
    return sources_of(before, measure_heap(roots, before.is_whole, before), steps, rise_bytes, device)


def sources_of(before: Heap, now: Heap, steps: int, rise_bytes: float, device: str = "cpu") -> GrowthSources:
    """Return what holds the memory that grew.

    Args:
        before: What was held when growth was first suspected, or its holder last named.
        now: What is held now, measured as what `before` has `grown`.
        steps: Agent steps since then.
        rise_bytes: Growth since then, by the counter that raised the suspicion.
        device: Kind of device whose memory grew, "cpu" or "cuda".

    Returns:
        Native memory is named only where the whole heap was measured and did not grow. Where `before` is not
        the whole heap and does not explain the growth, the one line is `ELSEWHERE`.
    """
    least = max(_LEAST_BYTES, _EXPLAINED * rise_bytes)
    risen = now.totals.get(device, 0.0) - before.totals.get(device, 0.0)
    lines = _grown_graphs(before.graphs, now.graphs, max(1, steps), least)
    if lines or risen >= _EXPLAINED * rise_bytes:
        paths = _grown_paths(before.held.get(device, {}), now.held.get(device, {}))
        filling = {path: _filling(path, before, now, max(1, steps)) for path in paths}
        named = sorted(paths, key=lambda path: filling[path] is not None)  # what fills comes last
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
    """Return the largest graphs of `least` bytes that are new or have grown, each with how it did."""
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
    """Return how full the container of a path is; None if it has no capacity, or has reached it."""
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
    """Return whether a path is that of a container or of what it contains."""
    return path == name or path.startswith((f"{name}[", f"{name}.<key"))


def _more_entries(path: str, before: Heap, now: Heap) -> str:
    """Return which container on the way to a path has more entries, the outermost; empty if none has."""
    for name in _containers(path):
        if name in now.entries:
            entries = now.entries[name]
            added = entries.length - (before.entries[name].length if name in before.entries else 0)
            if added > 0:
                return f"; {name}: {entries.text()}, {added:,} more"
    return ""


def _containers(path: str) -> list[str]:
    """Return what a path leads through, and the path itself: the outermost first.

    >>> _containers("agent.episodes[*]['obs']")
    ['agent.episodes', 'agent.episodes[*]', "agent.episodes[*]['obs']"]
    """
    return [*(path[: step.start()] for step in _STEP_INTO.finditer(path)), path]


def _grown_paths(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return by how many bytes those paths grew that grew most, the largest first."""
    growth = {path: nbytes - before.get(path, 0.0) for path, nbytes in after.items()}
    largest = sorted(growth, key=lambda path: -growth[path])[:_TOP]
    least = max(_LEAST_BYTES, _LEAST_SHARE * growth[largest[0]]) if largest else 0.0
    return {path: growth[path] for path in largest if growth[path] > least}


def measure_heap(roots: Mapping[str, Any], is_whole: bool, before: Heap | None = None) -> Heap:
    """Return what the Python heap holds now.

    `roots` are long-lived objects by name; what they do not reach is named by module, class or function. What
    holds most of the growth since `before` is asked for its capacity: the source of its class is read.
    Containers of more than 1,024 objects are sampled and extrapolated. Runs no code of what it visits, and
    keeps none of it.

    Cost: 0.3 s, for the whole heap 3 s, in a process that has imported PyTorch, on a busy machine; and 15 us
    a node of a graph.
    """
    gc.collect()
    for each in gc.get_objects() if is_whole else ():
        if is_tensor(each):
            # Reading makes its Python object: now, or the next measurement would count more.
            gradient_of(each)
    return _Measurement(gc.get_objects(), is_whole).of(roots, before)


class _Measurement:
    """One walk over `existing`, all that the garbage collector knows."""

    def __init__(self, existing: list[Any], is_whole: bool) -> None:
        self._existing, self._is_whole = existing, is_whole
        self._visitor = Visitor(everything=True)
        self._reachable: list[Found] = []  # tensors, arrays and nodes that a name leads to
        self._variables = set[str]()
        self._storages = set[StorageKey]()
        self._held: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._stores: dict[str, Bound] = {}
        self._entries: dict[str, Entries] = {}
        self._owners: dict[str, Any] = {}  # by path

    def of(self, roots: Mapping[str, Any], before: Heap | None) -> Heap:
        """Return what is held."""
        for each in self._existing:
            if type(each) is Heap:  # a former measurement
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
        # A variable is bound anew at each step; what an attribute or a container holds stays and comes first.
        graphs = measure_graphs(sorted(self._reachable, key=lambda each: each.path in self._variables))
        return Heap(kept, totals, graphs, self._is_whole, self._stores, entries)

    def _starts(self, roots: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield what a program can reach by name, the user's own before that of libraries; then the rest."""
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
            if not of_libraries:  # which are called with what the user's own modules hold
                yield from _variables(frames, of_libraries=True)
        if self._is_whole:
            yield from self._nameless()

    def _nameless(self) -> Iterator[tuple[str, Any]]:
        """Yield what the garbage collector knows and no name leads to."""
        others = [each for each in self._existing if not is_tensor(each)]
        for value in others:
            if id(value) not in self._visitor.seen and type(value) is not tuple:  # whose owner is seen
                yield f"<{type_name(type(value))} that nothing names>", value
        of_python = set(map(id, gc.get_referents(*others)))  # as elements that a sample has left out
        tensors = [each for each in self._existing if is_tensor(each) and id(each) not in of_python]
        # Parameters before their gradients, so that each gradient has the name of its parameter.
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
        elif not issubclass(kind.type, (type, types.ModuleType)):  # which are starts themselves
            nbytes = kind.size(value) + self._unvisited_bytes(value)
            self._held["cpu"][found.pattern] += found.weight * nbytes

    def _count_stores(self, found: Found, kind: Kind) -> None:
        """Note how full a container is that has a capacity of its own; others are asked when they grew."""
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
        """Note how full the container of a path is if the code of an object on the way bounds it."""
        capacities = Capacities()
        for start, owner in self._owners.items():
            if path.startswith(start) and path[len(start) :][:1] in ("", ".", "["):
                for bound in capacities.of(owner):
                    known = self._stores.setdefault(f"{start}{bound.path}", bound)
                    # Of several numbers the next one that the length will reach.
                    if known.held >= known.capacity or bound.held < bound.capacity < known.capacity:
                        self._stores[f"{start}{bound.path}"] = bound

    def _count_entries(self, found: Found, kind: Kind) -> None:
        """Note how much is in a container."""
        base = _CONTAINERS.get(id(kind.type))
        if base is None or base.__len__(found.value) < _FEW:
            return
        before = self._entries.get(found.pattern)
        length = round(found.weight * base.__len__(found.value)) + (before.length if before else 0)
        what = before.newest if before else ""
        with contextlib.suppress(IndexError, RuntimeError, StopIteration):  # empty, or changed now
            what = _newest_of(base, found.value)
        self._entries[found.pattern] = Entries(length, type_name(kind.type), what)

    def _unvisited_bytes(self, value: Any) -> float:
        """Return the bytes of what the walk passes over: numbers and texts, each once, and the `__dict__`."""
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
    """Return the type of the newest entry of a container; that of its key where it has keys."""
    if base is dict:
        return f"by {type_name(type(next(dict.__reversed__(value))))}"
    return type_name(type(next(set.__iter__(value)) if base is set else base.__getitem__(value, -1)))


def _kind_of(value: Tensor) -> str:
    """Return type, shape and maker of a tensor as text."""
    node, gradient = grad_fn(value), gradient_of(value)
    made_by = "leaf" if node is None else type_name(type(node))
    # `backward(create_graph=True)` leaves such a pair, alive by each other in C++, unseen by `gc.collect`.
    is_cycle = gradient is not None and grad_fn(gradient) is not None
    cycle = ", whose grad has grad_fn: a create_graph cycle" if is_cycle else ""
    return f"{type_name(type(value))} {shape_of(value)} from {made_by}{cycle}"


def _frames() -> list[types.FrameType]:
    """Return what all threads are in, of each the innermost function first; without our own and pytest's."""
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
    """Return whether a file is part of Python or installed, also into another environment's folder."""
    return file.startswith(LIBRARIES) or any(folder in file for folder in _INSTALLED)


def _is_library(namespace: dict[str, Any]) -> bool:
    """Return whether a module is not the user's own: installed, or part of Python."""
    file = namespace.get("__file__")
    is_installed = type(file) is not str or is_library(file)
    return is_installed and namespace.get("__name__") != "__main__"  # which has no file in a notebook
