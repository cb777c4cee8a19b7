"""Read autograd graphs as data: the nodes behind a tensor, and the memory they keep alive.

Saved tensors are read through `SavedTensor.data`, which runs no unpack hook: nothing is recomputed or loaded.
"""

import types
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .children import Role, dictionary_getter
from .readers import type_attribute, type_name
from .storages import StorageKey, is_tensor, shape_of, storage_of
from .walk import Found

_C: Any = torch._C
CAN_READ_SAVED = hasattr(_C._autograd.SavedTensor, "data")  # else only nodes are counted


def grad_fn(value: Tensor) -> Any | None:
    """Return the node that made a tensor, whatever its subclass says."""
    with torch._C.DisableTorchFunction():
        try:
            return _C.TensorBase.grad_fn.__get__(value)
        except RuntimeError:  # one of several views of a base that was changed in place: it has no node
            return None


def node_of(found: Found) -> Any | None:
    """Return the last node of the graph that an object keeps alive; None if it has no graph."""
    if found.role is Role.node:
        return found.value
    return grad_fn(found.value) if is_tensor(found.value) else None


@dataclass(slots=True)
class Totals:
    """What a set of nodes amounts to."""

    nodes: int = 0
    storages: dict[StorageKey, int] = field(default_factory=dict)
    """Bytes of the storages that the nodes keep alive."""
    uses: Counter[str] = field(default_factory=Counter)
    """How often each parameter is consumed, by its path."""
    oldest: int | None = None
    """Sequence number, which counts the nodes made by one thread."""
    saved: int = 0
    freed: int = 0
    """Slots for saved tensors, and how many of them backward has emptied already."""


class Nodes:
    """Reads nodes of autograd graphs; how to read a type is decided once, at its first node.

    `names` are paths of known leaves by the id of the tensor; storages `held_elsewhere` are not counted.
    """

    def __init__(self, names: dict[int, str], held_elsewhere: set[StorageKey]) -> None:
        self._names = names
        self._held_elsewhere = held_elsewhere
        self._by_type: dict[type, tuple[bool, tuple[Any, ...], Any | None]] = {}

    def is_shared_leaf(self, node: Any) -> bool:
        """Return whether a node belongs to a parameter, and so to every graph through that parameter."""
        return self._known(node)[0]

    def before(self, node: Any) -> list[Any]:
        """Return the nodes whose results a node consumed."""
        return [previous for previous, _ in node.next_functions if previous is not None]

    def add(self, node: Any, totals: Totals) -> None:
        """Count one node, and what it keeps alive."""
        totals.nodes += 1
        if not self.is_shared_leaf(node):
            number = node._sequence_nr()
            totals.oldest = number if totals.oldest is None else min(totals.oldest, number)
        for previous in self.before(node):
            if self.is_shared_leaf(previous):
                leaf = previous.variable
                totals.uses[self._names.get(id(leaf)) or f"<leaf {shape_of(leaf)}>"] += 1
        for tensor in self._tensors(node, totals):
            storage = storage_of(tensor)
            if storage is not None and storage.key not in self._held_elsewhere:
                totals.storages[storage.key] = storage.nbytes

    def _tensors(self, node: Any, totals: Totals) -> Iterator[Tensor]:
        """Yield the tensors that a node keeps alive, and count its slots."""
        is_leaf, saved, dictionary = self._known(node)
        for descriptor in saved if CAN_READ_SAVED else ():
            try:
                slots: Any = descriptor.__get__(node)
            except RuntimeError:  # a custom function whose tensors are freed
                slots = None
            for slot in slots if type(slots) is tuple else (slots,):
                data = None if slot is None else slot.data
                totals.saved += 1
                totals.freed += data is None
                yield from _packed(data)
        if dictionary is not None:  # what a custom function put on its context
            yield from (value for value in list(dictionary.__get__(node).values()) if is_tensor(value))
        if is_leaf:
            yield node.variable

    def _known(self, node: Any) -> tuple[bool, tuple[Any, ...], Any | None]:
        """Return whether it is a leaf, the descriptors of its saved tensors, and that of its `__dict__`."""
        kind = type(node)
        if kind not in self._by_type:
            saved = tuple(
                descriptor
                for base in type_attribute(kind, "__mro__")
                for name, descriptor in type_attribute(base, "__dict__").items()
                if name.startswith("_raw_saved_") and type(descriptor) is types.GetSetDescriptorType
            )
            self._by_type[kind] = type_name(kind) == "AccumulateGrad", saved, dictionary_getter(kind)
        return self._by_type[kind]


@dataclass(slots=True)
class Cluster:
    """Graphs that belong together: releasing only one of their ends frees nothing."""

    ends: list[int] = field(default_factory=list)
    """Their places among all ends, rising."""
    nodes: list[Any] = field(default_factory=list)
    """Every node behind them once."""
    are_apart: bool = True
    """Whether no two of the ends share a node."""


def cluster_graphs(
    ends: Sequence[Any], groups: Sequence[Hashable], reader: Nodes, max_nodes: int
) -> tuple[list[Cluster], bool]:
    """Return the clusters of the graphs behind some ends, and whether all nodes were seen.

    Ends that share a node are one cluster, and so are ends of the same group. Graphs of one parameter all
    meet in the node of that parameter, which therefore joins nothing. After `max_nodes` it stops.
    """
    parents = list(range(len(ends)))  # a forest; the root of each tree is the first end of a cluster
    met: set[int] = set()  # ends that share a node with another one
    reached: dict[int, tuple[Any, int]] = {}  # node, and the end that reached it first, by the node's id

    def first_end(end: int) -> int:
        while parents[end] != end:
            parents[end] = parents[parents[end]]
            end = parents[end]
        return end

    def join(one: int, other: int) -> None:
        first, second = sorted((first_end(one), first_end(other)))
        parents[second] = first

    first_of_group: dict[Hashable, int] = {}
    for end, group in enumerate(groups):
        join(first_of_group.setdefault(group, end), end)
    is_complete = True
    for end, last in enumerate(ends):
        stack = [last]
        while stack:
            node = stack.pop()
            _, other = reached.get(id(node), (None, None))
            if other is not None:  # what lies behind it is known already
                if other != end and not reader.is_shared_leaf(node):
                    met |= {other, end}
                    join(other, end)
                continue
            if len(reached) >= max_nodes:
                is_complete = False
                break
            reached[id(node)] = node, end  # held, so that its id stays its own
            stack.extend(reader.before(node))

    clusters: dict[int, Cluster] = {}
    for end in range(len(ends)):
        cluster = clusters.setdefault(first_end(end), Cluster())
        cluster.ends.append(end)
        cluster.are_apart &= end not in met
    for node, end in reached.values():
        clusters[first_end(end)].nodes.append(node)
    return list(clusters.values()), is_complete


def _packed(data: object) -> Iterator[Tensor]:
    """Yield the tensors in saved data; with `saved_tensors_hooks` it is whatever the hook has packed."""
    stack = [data]
    while stack:
        value = stack.pop()
        if is_tensor(value):
            yield value  # type: ignore[misc]
        elif type(value) is tuple or type(value) is list:
            stack.extend(value)
        elif type(value) is dict:
            stack.extend(value.values())
