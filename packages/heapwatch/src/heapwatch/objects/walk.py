"""Walk over what named roots hold; find the tensors and arrays among it, each with its path."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .readers import PRIMITIVE_IDS, Children, Role

_LONGEST_PATH = 240  # of a longer one, as in a linked list, only the beginning is kept
_NUMBERED = re.compile(r"\[[^\]]*\d[^\]]*\]|(<[\w.]+) \d+>")


class Found(NamedTuple):
    """An object, and where it was found."""

    path: str
    """As in `workflow.world_model.rssm._state.deter` or `store[3]['x']`."""
    pattern: str
    """The path with the numbers of elements as `*`, as in `store[*]['x']`: a growing list has one pattern."""
    value: Any
    role: Role
    weight: float = 1.0
    """Number of objects this one stands for; > 1 inside a long container, of which a sample was walked."""


@dataclass(slots=True)
class Walk:
    """What a walk found. It holds the tensors: drop it when done."""

    leaves: list[Found] = field(default_factory=list)
    nodes: list[Found] = field(default_factory=list)
    """Nodes of autograd graphs that Python holds without their tensor."""
    objects: int = 0
    """Objects visited, without plain numbers and texts."""
    truncated: bool = False
    """Whether `max_objects` ended the walk early: there is more than was seen."""
    sampled: list[str] = field(default_factory=list)
    """Paths of the containers of which only a sample was walked."""


def walk(roots: Mapping[str, Any], max_objects: int = 2_000_000) -> Walk:
    """Return every tensor and array that is reachable from the roots.

    Each object is visited once: at its first owner in the order of roots, attributes and elements. Not
    entered: modules, classes, code, loggers, files, and the insides of PyTorch and NumPy. Of a container of
    more than 1,024 objects a sample is walked. Runs no code of what it visits, copies no tensor and waits for
    no device.

    Cost: 4 us an object.
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


class Visitor:
    """Visits what is reachable, depth first, each object once; on demand numbers, texts and libraries too."""

    def __init__(self, everything: bool = False) -> None:
        self.children = Children(enters_libraries=everything)
        self.seen: set[int] = set()
        """Ids of what was visited. Add more to pass over it."""
        self.sampled: list[str] = []
        """Paths of the containers of which only a sample is visited."""
        self._skipped = frozenset() if everything else PRIMITIVE_IDS
        self._keep: list[Any] = []  # an id must not be given to a new object while the walk lasts
        self._patterns: dict[str, str] = {}

    def visit(self, starts: Iterable[tuple[str, Any]]) -> Iterator[Found]:
        """Yield each object before those that it holds."""
        for name, start in starts:
            stack = [(name, pattern_of(name), 1.0, start)]
            while stack:
                path, pattern, weight, value = stack.pop()
                if id(value) in self.seen or id(type(value)) in self._skipped:
                    continue
                self.seen.add(id(value))
                self._keep.append(value)
                held = self.children(value)
                yield Found(path, pattern, value, self.children.kind_of(value).role, weight)
                if any(share > 1.0 for _, _, share in held):
                    self.sampled.append(path)
                for step, child, share in reversed(held):
                    if step not in self._patterns:
                        self._patterns[step] = pattern_of(step)
                    where = path, pattern
                    if len(path) <= _LONGEST_PATH:
                        where = path + step, pattern + self._patterns[step]
                    stack.append((*where, weight * share, child))


def pattern_of(path: str) -> str:
    """Return a path with the numbers of elements as `*`.

    >>> pattern_of("module trainer.CACHE[17]['obs'].<set 3>")
    "module trainer.CACHE[*]['obs'].<set *>"
    """
    return _NUMBERED.sub(lambda match: f"{match[1]} *>" if match[1] else "[*]", path)


def resolve(roots: Mapping[str, Any], path: str) -> Any:
    """Return what a path leads to, as `walk` writes paths; no property runs.

    Raises:
        KeyError: Naming the first part of the path that leads nowhere.
    """
    name = max((root for root in roots if _begins(path, root)), key=len, default=None)
    if name is None:
        raise KeyError(f"No root begins the path `{path}`; roots: {', '.join(roots)}.")
    done, value, children = name, roots[name], Children()
    while done != path:
        rest = path[len(done) :]
        fitting = [(step, child) for step, child, _ in children(value) if _begins(rest, step)]
        if not fitting:
            raise KeyError(f"`{done}` has no `{rest}`.")
        step, value = max(fitting, key=lambda pair: len(pair[0]))
        done += step
    return value


def _begins(path: str, part: str) -> bool:
    """Return whether a path begins with a part and either ends there or continues with another part."""
    return path.startswith(part) and path[len(part) : len(part) + 1] in ("", ".", "[")
