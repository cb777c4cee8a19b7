"""Autograd graphs as data: the nodes behind a tensor, and the memory they keep alive.

Saved tensors are read through `SavedTensor.data`, which runs no unpack hook: a checkpointed block is not
recomputed and nothing is loaded back from the host. Each node is visited once.
"""

import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .children import dictionary_getter
from .readers import type_attribute, type_name
from .storages import StorageKey, is_tensor, storage_of

_C: Any = torch._C
CAN_READ_SAVED = hasattr(_C._autograd.SavedTensor, "data")
"""Whether this PyTorch shows saved tensors without running hooks; without it only nodes are counted."""

_TENSOR: Any = torch._C.TensorBase


def grad_fn(value: Tensor) -> Any | None:
    """Return the node that made a tensor, whatever its subclass says; call with torch functions disabled."""
    try:
        return _TENSOR.grad_fn.__get__(value)
    except RuntimeError:  # one of several views of a base that was changed in place: its node cannot be made
        return None


@dataclass(slots=True)
class Totals:
    """What a set of nodes amounts to."""

    nodes: int = 0

    storages: dict[StorageKey, int] = field(default_factory=dict)
    """Bytes of the storages that the nodes keep alive."""

    uses: Counter[str] = field(default_factory=Counter)
    """How often each parameter is consumed, by its path."""

    oldest: int | None = None
    newest: int = -1
    """Sequence numbers, which count the nodes made by one thread."""

    saved: int = 0
    freed: int = 0
    """Slots for saved tensors, and how many of them backward has emptied already."""


class Nodes:
    """Reads nodes of autograd graphs; how to read a type is decided once, at its first node.

    Args:
        names: Paths of known leaves of the graph, by the id of the tensor.
    """

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._by_type: dict[int, tuple[bool, tuple[Any, ...], Any | None]] = {}

    def is_shared_leaf(self, node: Any) -> bool:
        """Return whether a node belongs to a parameter, and so to every graph through that parameter."""
        return self._known(node)[0]

    def before(self, node: Any) -> list[Any]:
        """Return the nodes whose results a node consumed."""
        return [previous for previous, _ in node.next_functions if previous is not None]

    def add(self, node: Any, totals: Totals, held_elsewhere: set[StorageKey]) -> None:
        """Count one node, and what it keeps alive that is not held elsewhere anyway."""
        totals.nodes += 1
        if not self.is_shared_leaf(node):
            number = node._sequence_nr()
            totals.newest = max(totals.newest, number)
            totals.oldest = number if totals.oldest is None else min(totals.oldest, number)
        for previous in self.before(node):
            if self.is_shared_leaf(previous):
                totals.uses[self._name(previous.variable)] += 1
        for tensor in self._tensors(node, totals):
            storage = storage_of(tensor)
            if storage is not None and storage.key not in held_elsewhere:
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
        known = self._by_type.get(id(kind))
        if known is None:
            namespaces = [type_attribute(base, "__dict__") for base in type_attribute(kind, "__mro__")]
            saved = tuple(
                descriptor
                for namespace in namespaces
                for name, descriptor in namespace.items()
                if name.startswith("_raw_saved_") and type(descriptor) is types.GetSetDescriptorType
            )
            known = (type_name(kind) == "AccumulateGrad", saved, dictionary_getter(kind))
            self._by_type[id(kind)] = known
        return known

    def _name(self, variable: Tensor) -> str:
        return self._names.get(id(variable)) or f"<leaf {tuple(_TENSOR.shape.__get__(variable))}>"


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
