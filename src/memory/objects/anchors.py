"""Who keeps an autograd graph alive, and what it costs: the tensors with a `grad_fn` that named roots reach.

Graphs that meet in a node are one cluster, reported as one anchor: letting go of only one of its holders
frees nothing. Scan at the border of a step, never during `backward`. Reports hold texts and numbers only.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .clusters import Clusters
from .graph import CAN_READ_SAVED, Nodes, Totals, grad_fn
from .storages import StorageKey, is_tensor, storage_of
from .walk import Leaf, walk

MAX_PATHS = 32
MAX_PARAMS = 8
_NUMBER_IN_PATH = re.compile(r"(?<=[\[ ])\d+(?=[\]>])")
_BYTES_PER_MB = 1e6


@dataclass(frozen=True, slots=True)
class Anchor:
    """One cluster of graphs that live because something reachable holds their ends."""

    owner: str
    """Object or container that holds the first end, numbers in it as `*`: `store[*]`."""

    paths: tuple[str, ...]
    """All ends, the first 32 of them, in the order of the walk."""

    num_paths: int
    nodes: int
    nbytes: int
    """Bytes that only the graph keeps alive; parameters, replay and all else the roots hold are not in it."""

    steps_deep: int
    """How often the most used parameter is consumed: the time steps that are retained."""

    params: tuple[tuple[str, int], ...]
    """Paths of the parameters it runs through and how often, most used first; the first 8."""

    oldest_sequence: int
    """Number of its oldest node; that it stays from scan to scan means that nothing is released."""

    newest_sequence: int
    freed: bool
    """Whether backward has freed the saved tensors, so that only the skeleton of nodes is left."""

    estimated: bool = False
    """Whether the figures are extrapolated from a sample of a long container."""

    def text(self) -> str:
        """Return one sentence: what holds how much, through what, and what else holds it."""
        about = "about " if self.estimated else ""
        parts = [f"{self.paths[0]} -> {about}{self.nodes:,} autograd nodes, {self._size_text()}"]
        if self.params:
            path, times = self.params[0]
            parts.append(f"runs {times}x through {path}")
        if self.num_paths > 1:
            others = ", ".join(_abbreviated(path, self.paths[0]) for path in self.paths[1:5])
            more = f" and {self.num_paths - 5:,} more" if self.num_paths > 5 else ""
            parts.append(f"the same graph is also held by: {others}{more}")
        return "; ".join(parts)

    def _size_text(self) -> str:
        steps = f"{self.steps_deep:,} {'step' if self.steps_deep == 1 else 'steps'} deep"
        if not CAN_READ_SAVED:
            return f"bytes not known to this version of PyTorch, {steps}"
        if self.freed:
            return f"buffers freed by backward, skeleton only, {steps}"
        return f"{self.nbytes / _BYTES_PER_MB:.1f} MB held by the graph, {steps}"


@dataclass(frozen=True, slots=True)
class AnchorReport:
    """All anchors of one scan, the largest first."""

    anchors: tuple[Anchor, ...]
    objects: int
    """Objects visited."""

    truncated: bool = False
    """Whether a limit ended the scan early."""

    sampled: tuple[str, ...] = ()
    """Long containers of which a sample was scanned."""

    def text(self, top: int = 8) -> str:
        """Return a line per anchor, and what was left out."""
        lines = [anchor.text() for anchor in self.anchors[:top]]
        if not lines:
            lines = [f"No tensor with a grad_fn is reachable ({self.objects:,} objects seen)."]
        if len(self.anchors) > top:
            lines.append(f"... and {len(self.anchors) - top:,} smaller ones.")
        if self.truncated:
            lines.append("The scan reached its limit: there is more than this.")
        if self.sampled:
            lines.append(f"Only a sample was scanned of: {', '.join(self.sampled[:4])}.")
        return "\n".join(lines)


def find_anchors(
    roots: Mapping[str, Any], max_objects: int = 2_000_000, max_nodes: int = 3_000_000
) -> AnchorReport:
    """Return what the roots hold of autograd graphs, the largest first.

    Runs no code of what it visits, no unpack hooks, copies nothing and waits for no device. Nothing of what
    was visited is held afterwards.

    Cost: 4 us an object and 15 us a node.
    """
    found = walk(roots, max_objects)
    with torch._C.DisableTorchFunction():
        heads = [leaf for leaf in found.leaves if is_tensor(leaf.value) and grad_fn(leaf.value) is not None]
        anchors, complete = measure([*heads, *found.nodes], found.leaves, max_nodes)
    return AnchorReport(anchors, found.objects, found.truncated or not complete, tuple(found.sampled))


def measure(
    heads: Iterable[Leaf], leaves: Iterable[Leaf], max_nodes: int = 3_000_000
) -> tuple[tuple[Anchor, ...], bool]:
    """Return the graphs behind `heads`, the largest first, and whether `max_nodes` sufficed.

    Call with torch functions disabled.

    Args:
        heads: Tensors with a graph, or nodes.
        leaves: All tensors and arrays that are alive anyway; their memory is not blamed on a graph.
        max_nodes: Nodes after which it stops.
    """
    held_elsewhere: set[StorageKey] = set()
    names: dict[int, str] = {}
    for leaf in leaves:
        if not is_tensor(leaf.value) or grad_fn(leaf.value) is None:
            storage = storage_of(leaf.value)
            held_elsewhere |= {storage.key} if storage is not None else set()
            names[id(leaf.value)] = leaf.path
    ends = list(heads)
    reader = Nodes(names)
    nodes = [grad_fn(end.value) if is_tensor(end.value) else end.value for end in ends]
    clusters = Clusters(nodes, [_folded(end.owner) for end in ends], reader, max_nodes)
    members = clusters.members()
    totals = {cluster: Totals() for cluster in members}
    for node in clusters.nodes:
        reader.add(node, totals[clusters.of_node(node)], held_elsewhere)
    anchors = [
        _anchor([ends[i] for i in members[cluster]], total, clusters.are_apart(members[cluster]))
        for cluster, total in totals.items()
    ]
    anchors.sort(key=lambda anchor: (-anchor.nbytes, -anchor.nodes))
    return tuple(anchors), clusters.is_complete


def _anchor(ends: list[Leaf], total: Totals, are_apart: bool) -> Anchor:
    # Ends that share nodes reach the nodes of those that were left out of the sample.
    scale = sum(end.weight for end in ends) / len(ends) if are_apart else 1.0
    params = [(path, round(times * scale)) for path, times in total.uses.most_common(MAX_PARAMS)]
    return Anchor(
        owner=_folded(ends[0].owner),
        paths=tuple(end.path for end in ends[:MAX_PATHS]),
        num_paths=round(sum(end.weight for end in ends)),
        nodes=round(total.nodes * scale),
        nbytes=round(sum(total.storages.values()) * scale),
        steps_deep=params[0][1] if params else 0,
        params=tuple(params),
        oldest_sequence=-1 if total.oldest is None else total.oldest,
        newest_sequence=total.newest,
        freed=0 < total.saved == total.freed,
        estimated=scale > 1.0,
    )


def _folded(owner: str) -> str:
    """Return a path with the numbers of elements as `*`: a growing list is one owner, scan after scan."""
    return _NUMBER_IN_PATH.sub("*", owner)


def _abbreviated(path: str, first: str) -> str:
    """Return a path with all but the last name of what it shares with the first one left out."""
    shared = first.rpartition(".")[0]
    while shared and not path.startswith(f"{shared}."):
        shared = shared.rpartition(".")[0]
    start = shared.rfind(".") + 1
    return f"...{path[start:]}" if start else path
