"""The tensors and arrays that are reachable from named roots, each with the path of its first owner."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .children import Children, Role
from .readers import PRIMITIVE_IDS

LONG = 100
"""Elements from which on the length of a container is noted."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor or an array, and where it was found."""

    path: str
    """As in `workflow.world_model.rssm._state.deter` or `store[3]['x']`."""

    owner: str
    """Path of the object or container that holds it."""

    value: Any
    """The tensor or array itself; in `Walk.nodes` the node."""

    weight: float = 1.0
    """Number of leaves this one stands for; over 1 inside a long container, of which a sample was walked."""


@dataclass(slots=True)
class Walk:
    """What a walk found. It holds the tensors: drop it when done."""

    leaves: list[Leaf] = field(default_factory=list)

    nodes: list[Leaf] = field(default_factory=list)
    """Nodes of autograd graphs that Python holds without their tensor."""

    objects: int = 0
    """Objects visited, each once; plain numbers and texts are not counted."""

    truncated: bool = False
    """Whether `max_objects` ended the walk early: there is more than was seen."""

    sampled: list[str] = field(default_factory=list)
    """Paths of the containers of which only a sample was walked."""

    lengths: dict[str, int] = field(default_factory=dict)
    """Elements, plain numbers too, of the containers of at least `LONG` elements, by path."""


def walk(roots: Mapping[str, Any], max_objects: int = 2_000_000) -> Walk:
    """Return every tensor and array that is reachable from the roots.

    Depth first, by identity, each object visited once: at its first owner in the order of roots, attributes
    and elements. Not descended into: modules, classes, code, loggers, files, and the insides of PyTorch and
    NumPy. Of a container of more than 1,024 objects a sample is walked (`Leaf.weight`, `Walk.sampled`).

    Runs no code of what it visits, copies no tensor and waits for no device.

    Cost: 4 us an object.
    """
    found = Walk()

    def collect(role: Role, leaf: Leaf) -> bool:
        (found.leaves if role is Role.leaf else found.nodes).append(leaf)
        return False

    traverse(roots, max_objects, collect, found)
    return found


def traverse(
    roots: Mapping[str, Any], max_objects: int, visit: Callable[[Role, Leaf], bool], found: Walk
) -> None:
    """Walk, showing each tensor, array and node to `visit` until that returns True.

    Counts and flags are kept in `found`.
    """
    children, seen = Children(), set[int]()
    keep: list[Any] = []  # an id must not be given to a new object while the walk lasts
    stack = [(name, name, 1.0, root) for name, root in reversed(list(roots.items()))]
    with torch._C.DisableTorchFunction():
        while stack:
            path, owner, weight, value = stack.pop()
            if id(type(value)) in PRIMITIVE_IDS or id(value) in seen:
                continue
            if found.objects >= max_objects:
                found.truncated = True
                return
            seen.add(id(value))
            keep.append(value)
            found.objects += 1
            role = children.role(value)
            if role is not Role.plain and visit(role, Leaf(path, owner, value, weight)):
                return
            length = children.length(value)
            if length >= LONG:
                found.lengths[path] = length
            held = children(value)
            if any(each > 1.0 for _, _, each in held):
                found.sampled.append(path)
            # What hangs on a tensor belongs to the owner of the tensor.
            here = owner if role is Role.leaf else path
            stack.extend((path + step, here, weight * each, child) for step, child, each in reversed(held))


def resolve(roots: Mapping[str, Any], path: str) -> Any:
    """Return what a path leads to, as `walk` writes paths; no property runs.

    Raises:
        KeyError: Naming the first part of the path that leads nowhere.
    """
    name = max((root for root in roots if _begins(path, root)), key=len, default=None)
    if name is None:
        raise KeyError(f"No root begins the path `{path}`; roots: {', '.join(roots)}.")
    done, value, children = name, roots[name], Children()
    with torch._C.DisableTorchFunction():
        while done != path:
            rest = path[len(done) :]
            fitting = [(step, child) for step, child, _ in children(value) if _begins(rest, step)]
            if not fitting:
                raise KeyError(f"`{done}` has no `{rest}`.")
            step, value = max(fitting, key=lambda pair: len(pair[0]))
            done += step
    return value


def _begins(path: str, part: str) -> bool:
    """Return whether a path begins with a part and ends there or goes on with another."""
    return path.startswith(part) and path[len(part) : len(part) + 1] in ("", ".", "[")
