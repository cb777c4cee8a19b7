"""The way back: from an object to the module, class or running function that holds it."""

import gc
import re
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from .children import Children
from .frames import frame_locals, running_frames
from .readers import type_attribute, type_name
from .storages import is_tensor

MAX_LEVELS = 12
MAX_BRANCHES = 8
_OWN_FOLDER = str(Path(__file__).parents[1])
_FIRST_KEY = re.compile(r"^\['([^']*)'\]")


@dataclass(frozen=True, slots=True)
class _Link:
    """One reference: `holder` followed by `step` leads to what has the id `held`."""

    held: int
    holder: Any
    step: str
    is_namespace: bool = False
    """Whether `held` is the `__dict__` of the holder, so that its keys are attributes."""


@dataclass(slots=True)
class _Search:
    """The search for the holder of one object, breadth first."""

    frontier: list[tuple[Any, str]]
    """Holders found on the last level, and the path from each to the object."""

    seen: set[int] = field(default_factory=set)
    name: str | None = None

    def step_up(self, links: list[_Link]) -> None:
        """Go on to the holders of the frontier; without any, the last holder found gives the name."""
        paths = {id(held): path for held, path in self.frontier}
        above: list[tuple[Any, str]] = []
        for link in links:
            if link.held in paths and id(link.holder) not in self.seen and len(above) < MAX_BRANCHES:
                self.seen.add(id(link.holder))
                path = paths[link.held]
                path = _as_attribute(path) if link.is_namespace else link.step + path
                above.append((link.holder, path))
        if not above:
            self.give_up()
        self.frontier = above

    def give_up(self) -> None:
        """Name the object by the type of its farthest known holder."""
        holder, path = self.frontier[0]
        self.name = f"<{type_name(type(holder))} that nothing names>{path}"


def held_by_python(existing: Sequence[Any], tensors: Sequence[Tensor]) -> set[int]:
    """Return the ids of those tensors that another kind of object, or a running function, refers to."""
    wanted = set(map(id, tensors))
    held = gc.get_referents(*[o for o in existing if not is_tensor(o)])
    return {id(o) for o in held if id(o) in wanted} | (wanted & _frame_names().keys())


def holder_names(targets: Sequence[Any], existing: set[int]) -> list[str]:
    """Return what holds each object, as `module trainer.TRACE[3]` or `frame train:12 losses[0]`.

    All objects are searched for at once: a level is one pass over all that exists.

    Args:
        targets: What to search for.
        existing: Ids of what may be a holder: what existed before the search, which makes lists itself.
    """
    modules, frames, children = _module_names(), _frame_names(), Children()
    searches = [_Search([(target, "")]) for target in targets]
    for _ in range(MAX_LEVELS):
        for search in searches:
            if search.name is None:
                search.name = _root_name(search, modules, frames)
        pending = [search for search in searches if search.name is None]
        if not pending:
            break
        wanted = [held for search in pending for held, _ in search.frontier]
        ids = {id(held) for held in wanted}
        referrers = [r for r in gc.get_referrers(*wanted) if id(r) in existing]
        links = [link for referrer in referrers for link in _links(referrer, ids, children)]
        for search in pending:
            search.step_up(links)
    for search in searches:
        if search.name is None:
            search.give_up()
    return [str(search.name) for search in searches]


def _root_name(search: _Search, modules: dict[int, str], frames: dict[int, str]) -> str | None:
    """Return the name of a holder on the frontier that ends the search."""
    for held, path in search.frontier:
        if id(held) in modules:
            return f"module {modules[id(held)]}{_as_attribute(path)}"
        if issubclass(type(held), type):
            return f"class {type_attribute(held, '__module__')}.{type_name(held)}{path}"
        if id(held) in frames:
            return f"frame {frames[id(held)]}{path}"
    return None


def _as_attribute(path: str) -> str:
    """Return a path into a namespace as one into what the namespace belongs to: `['x']` is `.x`."""
    return _FIRST_KEY.sub(r".\1", path)


def _links(holder: Any, wanted: set[int], children: Children) -> Iterator[_Link]:
    """Yield the references of one object to what is wanted."""
    kind = type(holder)
    if kind is list or kind is tuple:
        named = [(id(held), f"[{i}]") for i, held in enumerate(holder)]
    else:
        named = [(id(held), step) for step, held, _ in children(holder)]
    found = [_Link(held, holder, step) for held, step in named if held in wanted]
    if not found:  # a sampled container, a namespace, or a reference without a name
        for held in gc.get_referents(holder):
            if id(held) in wanted:
                is_namespace = type(held) is dict and kind is not dict
                found.append(_Link(id(held), holder, f".<{type_name(kind)}>", is_namespace))
    yield from found


def _module_names() -> dict[int, str]:
    """Return the names of all modules by the id of their namespace."""
    read = type_attribute(types.ModuleType, "__dict__")["__dict__"]
    names: dict[int, str] = {}
    for name, module in list(sys.modules.items()):
        if type(name) is str and issubclass(type(module), types.ModuleType):
            names.setdefault(id(read.__get__(module)), name)  # `__main__` has other names beside this first
    return names


def _frame_names() -> dict[int, str]:
    """Return `function:line variable` by the id of each value that a running function has a name for."""
    names: dict[int, str] = {}
    for frame in running_frames():
        code = frame.f_code
        if not code.co_filename.startswith(_OWN_FOLDER):
            for variable, value in frame_locals(frame):
                names.setdefault(id(value), f"{code.co_name}:{frame.f_lineno} {variable}")
    return names
