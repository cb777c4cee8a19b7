"""Nests: dictionaries of dictionaries that end in tensors, arrays and numbers, as states are."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

Leaf = TypeVar("Leaf")


def mapped(nest: Mapping[str, Any], kind: type[Leaf], change: Callable[[Leaf], Any]) -> dict[str, Any]:
    """Return a nest with each leaf of a kind changed, and everything else as it is."""

    def of(value: Any) -> Any:
        if isinstance(value, kind):
            return change(value)
        return mapped(value, kind, change) if isinstance(value, Mapping) else value

    return {key: of(value) for key, value in nest.items()}


def leaves(nest: Mapping[str, Any], kind: type[Leaf]) -> Iterator[Leaf]:
    """Yield each leaf of a kind, depth first, in the order of the dictionaries."""
    for value in nest.values():
        if isinstance(value, kind):
            yield value
        elif isinstance(value, Mapping):
            yield from leaves(value, kind)
