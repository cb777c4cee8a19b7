"""Which ends of autograd graphs share a graph: letting go of only one of them frees nothing."""

from collections.abc import Hashable, Sequence
from typing import Any

from .graph import Nodes


class Clusters:
    """The nodes behind some ends, and which ends belong together.

    Graphs of one parameter all meet in the node of that parameter, which therefore joins nothing.

    Args:
        ends: Nodes to start from.
        groups: A label for each end; ends of the same label are one cluster, whether they meet or not.
        reader: Reads nodes.
        max_nodes: Nodes after which it stops.
    """

    def __init__(
        self, ends: Sequence[Any], groups: Sequence[Hashable], reader: Nodes, max_nodes: int
    ) -> None:
        self.nodes: list[Any] = []
        """Every node once."""

        self.is_complete = True
        self._first_end: dict[int, int] = {}  # end that reached a node first, by the id of the node
        self._meeting = _Forest(len(ends))
        for end, node in enumerate(ends):
            self._explore(end, node, reader, max_nodes)
        self._joined = self._meeting.copy()
        first_of_group: dict[Hashable, int] = {}
        for end, group in enumerate(groups):
            self._joined.join(first_of_group.setdefault(group, end), end)

    def of_node(self, node: Any) -> int:
        """Return the cluster of a node."""
        return self._joined.find(self._first_end[id(node)])

    def members(self) -> dict[int, list[int]]:
        """Return the ends of each cluster, in the order they were given."""
        clusters: dict[int, list[int]] = {}
        for end in range(len(self._joined.parent)):
            clusters.setdefault(self._joined.find(end), []).append(end)
        return clusters

    def are_apart(self, ends: Sequence[int]) -> bool:
        """Return whether no two of these ends share a node."""
        return len({self._meeting.find(end) for end in ends}) == len(ends)

    def _explore(self, end: int, node: Any, reader: Nodes, max_nodes: int) -> None:
        stack = [node]
        while stack:
            node = stack.pop()
            first = self._first_end.get(id(node))
            if first is not None:  # what lies behind it is known already
                if first != end and not reader.is_shared_leaf(node):
                    self._meeting.join(first, end)
                continue
            if len(self.nodes) >= max_nodes:
                self.is_complete = False
                return
            self._first_end[id(node)] = end
            self.nodes.append(node)  # held, so that its id stays its own
            stack.extend(reader.before(node))


class _Forest:
    """Disjoint sets of numbers (union-find); the smallest number of a set stands for it."""

    def __init__(self, size: int) -> None:
        self.parent = list(range(size))

    def copy(self) -> "_Forest":
        """Return the same sets."""
        other = _Forest(0)
        other.parent = list(self.parent)
        return other

    def find(self, number: int) -> int:
        """Return the representative of a number's set."""
        while self.parent[number] != number:
            self.parent[number] = self.parent[self.parent[number]]
            number = self.parent[number]
        return number

    def join(self, one: int, other: int) -> None:
        """Make one set of two."""
        low, high = sorted((self.find(one), self.find(other)))
        self.parent[high] = low
