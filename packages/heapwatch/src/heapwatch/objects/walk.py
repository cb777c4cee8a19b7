"""Walk over the objects reachable from named roots, and find tensors and arrays with their paths."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from .readers import PRIMITIVE_IDS, Child, Children, Kind, Role, exception, referents, traceback

# Longer paths, such as in a linked list, are cut off.
_LONGEST_PATH = 240
_ATTEMPTS = 3
_NUMBERED = re.compile(r"\[[^\]]*\d[^\]]*\]|(<[\w.]+) \d+>")


class Found(NamedTuple):
    """An object and its location."""

    path: str
    """Path, such as `workflow.world_model.rssm._state.deter` or `store[3]['x']`."""
    pattern: str
    """The path with indices as `*`, such as `store[*]['x']`, so that a growing list has one pattern."""
    value: Any
    role: Role
    weight: float = 1.0
    """Number of objects represented by this one. Above 1 inside a long container that was sampled."""


@dataclass(slots=True)
class Walk:
    """The result of a walk. It references the tensors, so drop it after use."""

    leaves: list[Found] = field(default_factory=list)
    nodes: list[Found] = field(default_factory=list)
    """Autograd nodes that Python references without their tensor."""
    objects: int = 0
    """Number of visited objects, excluding numbers and strings."""
    truncated: bool = False
    """Whether `max_objects` ended the walk early, so that the result is incomplete."""
    sampled: list[str] = field(default_factory=list)
    """Paths of the containers that were sampled."""


def walk(roots: Mapping[str, Any], max_objects: int = 2_000_000) -> Walk:
    """Return every tensor and array that is reachable from the roots.

    Each object is visited once, at its first owner in the order of roots, attributes and elements. The walk
    does not enter modules, classes, code, loggers, files, or internals of PyTorch and NumPy. Containers of
    more than 1,024 objects are sampled. The walk runs no code of visited objects, copies no tensor and
    synchronizes with no device.

    Cost: 4 us per object.
    """
    result, visitor = Walk(), Visitor()
    for found in visitor.visit(roots.items()):
        if result.objects >= max_objects:
            result.truncated = True
            break
        result.objects += 1
        if found.role is not Role.plain:
            (result.leaves if found.role is Role.leaf else result.nodes).append(found)
    result.sampled = visitor.sampled
    return result


# Path, pattern, weight and object.
_Place = tuple[str, str, float, Any]


class Visitor:
    """Visits reachable objects once, depth first, on request also numbers, strings and libraries."""

    def __init__(self, everything: bool = False) -> None:
        self.children = Children(enters_libraries=everything)
        self.seen: set[int] = set()
        """Ids of visited objects. Add ids to skip objects."""
        self.sampled: list[str] = []
        """Paths of the containers that are sampled."""
        self.sampled_containers: list[Any] = []
        self._skipped = frozenset() if everything else PRIMITIVE_IDS
        # The references prevent reuse of ids during the walk.
        self._keep: list[Any] = []
        self._patterns: dict[str, str] = {}

    def visit(self, starts: Iterable[tuple[str, Any]]) -> Iterator[Found]:
        """Yield each object before the objects that it references. Those of exceptions come last.

        The variables of a traceback may lead to the whole program, which has shorter paths too.
        """
        postponed = deque[list[_Place]]()
        first = ([(name, pattern_of(name), 1.0, start)] for name, start in starts)
        for stack in chain(first, _drained(postponed)):
            while stack:
                path, pattern, weight, value = stack.pop()
                if id(value) in self.seen or id(type(value)) in self._skipped:
                    continue
                self.seen.add(id(value))
                self._keep.append(value)
                kind = self.children.kind_of(value)
                held = _held(value, kind)
                yield Found(path, pattern, value, kind.role, weight)
                if any(share > 1.0 for _, _, share in held):
                    self.sampled.append(path)
                    self.sampled_containers.append(value)
                found = stack
                if exception in kind.readers or traceback in kind.readers:
                    postponed.append(found := [])
                for step, child, share in reversed(held):
                    if step not in self._patterns:
                        self._patterns[step] = pattern_of(step)
                    where = path, pattern
                    if len(path) <= _LONGEST_PATH:
                        where = path + step, pattern + self._patterns[step]
                    found.append((*where, weight * share, child))


def _drained(queue: deque[list[_Place]]) -> Iterator[list[_Place]]:
    while queue:
        yield queue.popleft()


def _held(value: Any, kind: Kind) -> list[Child]:
    """Return what an object references, even if another thread or a finalizer changes it meanwhile."""
    for _ in range(_ATTEMPTS):
        with suppress(RuntimeError):
            return [child for read in kind.readers for child in read(value)]
    return [*referents(value)]


def pattern_of(path: str) -> str:
    """Return a path with `*` in place of indices.

    >>> pattern_of("module trainer.CACHE[17]['obs'].<set 3>")
    "module trainer.CACHE[*]['obs'].<set *>"
    """
    return _NUMBERED.sub(lambda match: f"{match[1]} *>" if match[1] else "[*]", path)
