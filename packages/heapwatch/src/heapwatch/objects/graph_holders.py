"""Find the objects that keep autograd graphs alive, and how much memory they retain.

Search at the end of a step, never during `backward`. Reports hold texts and numbers only.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..texts import count_text
from .graph import CAN_READ_SAVED, Nodes, Totals, cluster_graphs, node_of
from .storages import StorageKey, is_tensor, storage_of
from .walk import Found, Visitor, walk

_MAX_PATHS = 32
_MAX_PARAMS = 8
_OTHERS_SHOWN = 4
_BYTES_PER_MB = 1e6


@dataclass(frozen=True, slots=True)
class GraphHolder:
    """One cluster of graphs that live because something reachable holds their ends."""

    pattern: str
    """Pattern of the first path."""
    paths: tuple[str, ...]
    """Paths of the first 32 ends, in the order of the walk."""
    num_paths: int
    nodes: int
    nbytes: int
    """Bytes that only the graph keeps alive."""
    steps_deep: int
    """How often the most used parameter is used: the steps that are kept, in one chain or each by itself."""
    params: tuple[tuple[str, int], ...]
    """Paths of the parameters it runs through and how often, most used first; the first 8."""
    oldest_sequence: int
    """Number of its oldest node; where it stays from search to search, nothing is released."""
    freed: bool
    """Whether backward has freed the saved tensors, so that only the skeleton of nodes is left."""
    estimated: bool = False
    """Whether the figures are extrapolated from a sample of a long container."""

    def text(self) -> str:
        """Return one sentence: what holds how much, which parameter it uses, and what else holds it."""
        about = "about " if self.estimated else ""
        parts = [f"{self.paths[0]} -> {about}{count_text(self.nodes, 'autograd node')}, {self._size_text()}"]
        if self.params:
            path, times = self.params[0]
            parts.append(f"they use {path} {'once' if times == 1 else f'{times:,} times'}")
        if self.num_paths > 1:
            others = self.paths[1 : 1 + _OTHERS_SHOWN]
            names = ", ".join(_abbreviated(path, self.paths[0]) for path in others)
            num_more = self.num_paths - 1 - _OTHERS_SHOWN
            more = f" and {num_more:,} more" if num_more > 0 else ""
            parts.append(f"also held by {names}{more}")
        return "; ".join(parts)

    def growth_since(self, before: "GraphHolder", steps: int) -> "GraphGrowth":
        """Return how the graphs changed since a search that found the same pattern, so many steps ago."""
        return GraphGrowth(
            nodes_per_step=(self.nodes - before.nodes) / steps,
            bytes_per_step=(self.nbytes - before.nbytes) / steps,
            pinned=self.oldest_sequence == before.oldest_sequence,
        )

    def _size_text(self) -> str:
        if not CAN_READ_SAVED:
            return "whose bytes this version of PyTorch does not tell"
        if self.freed:
            return "whose tensors backward has freed"
        return f"which keep {self.nbytes / _BYTES_PER_MB:.1f} MB of tensors"


@dataclass(frozen=True, slots=True)
class GraphGrowth:
    """How the graphs of one holder changed between two searches."""

    nodes_per_step: float
    bytes_per_step: float
    pinned: bool
    """Whether the oldest node is the same as before: nothing is ever released. A window moves instead."""

    def text(self) -> str:
        """Return the change as text."""
        tensors = f" and {self.bytes_per_step:+,.0f} bytes of tensors" if round(self.bytes_per_step) else ""
        end = "the oldest node stays" if self.pinned else "the oldest nodes are released"
        return f"{self.nodes_per_step:+,.1f} nodes{tensors} a step; {end}"


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The holders of graphs that one search found, the largest first."""

    holders: tuple[GraphHolder, ...]
    truncated: bool = False
    """Whether a limit ended the search early."""


def find_graph_holders(
    roots: Mapping[str, Any], max_objects: int = 2_000_000, max_nodes: int = 3_000_000
) -> GraphReport:
    """Return what the roots hold of autograd graphs, the largest first.

    Runs no code of what it visits, no unpack hooks, copies nothing, keeps nothing and waits for no device.

    Cost: 4 us an object and 15 us a node.
    """
    found = walk(roots, max_objects)
    return measure_graphs([*found.leaves, *found.nodes], max_nodes, found.truncated)


def first_graph(roots: Mapping[str, Any], max_objects: int = 20_000) -> str | None:
    """Return the path of the first reachable tensor, or node, of an autograd graph; None without one.

    It follows no graph. After `max_objects` it gives up and answers None: a limit on time, not a proof.

    Cost: 4 us an object; 2 to 4 ms for a workflow of model=size12m (600 objects) and its replay.
    """
    visited = islice(Visitor().visit(roots.items()), max_objects)
    return next((found.path for found in visited if node_of(found) is not None), None)


def measure_graphs(
    reachable: Iterable[Found], max_nodes: int = 3_000_000, truncated: bool = False
) -> GraphReport:
    """Return the graphs of what a walk found; memory that others keep alive anyway counts for none."""
    held_elsewhere: set[StorageKey] = set()
    names: dict[int, str] = {}
    ends: list[Found] = []
    nodes: list[Any] = []
    for found in reachable:
        node = node_of(found)
        if node is not None:
            ends.append(found)
            nodes.append(node)
            continue
        storage = storage_of(found.value)
        if storage is not None:
            held_elsewhere.add(storage.key)
        if is_tensor(found.value):
            names[id(found.value)] = found.path
    reader, holders = Nodes(names, held_elsewhere), []
    clusters, is_complete = cluster_graphs(nodes, [end.pattern for end in ends], reader, max_nodes)
    for cluster in clusters:
        total = Totals()
        for node in cluster.nodes:
            reader.add(node, total)
        holders.append(_holder([ends[i] for i in cluster.ends], total, cluster.are_apart))
    holders.sort(key=lambda each: (-each.nbytes, -each.nodes))
    return GraphReport(tuple(holders), truncated or not is_complete)


def _holder(ends: Sequence[Found], total: Totals, are_apart: bool) -> GraphHolder:
    # Ends that share nodes reach the nodes of those that were left out of the sample.
    scale = sum(end.weight for end in ends) / len(ends) if are_apart else 1.0
    params = [(path, round(times * scale)) for path, times in total.uses.most_common(_MAX_PARAMS)]
    return GraphHolder(
        pattern=ends[0].pattern,
        paths=tuple(end.path for end in ends[:_MAX_PATHS]),
        num_paths=round(sum(end.weight for end in ends)),
        nodes=round(total.nodes * scale),
        nbytes=round(sum(total.storages.values()) * scale),
        steps_deep=params[0][1] if params else 0,
        params=tuple(params),
        oldest_sequence=-1 if total.oldest is None else total.oldest,
        freed=0 < total.saved == total.freed,
        estimated=scale > 1.0,
    )


def _abbreviated(path: str, first: str) -> str:
    """Return a path with all but the last name of what it shares with the first one left out."""
    shared = first.rpartition(".")[0]
    while shared and not path.startswith(f"{shared}."):
        shared = shared.rpartition(".")[0]
    start = shared.rfind(".") + 1
    return f"...{path[start:]}" if start else path
