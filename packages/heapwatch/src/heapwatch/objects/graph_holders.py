"""Find the objects that keep autograd graphs alive, and how much memory they retain.

Search at the end of a step, never during `backward`. Graphs are read as data. Saved tensors are read through
`SavedTensor.data` without unpack hooks, so no data is recomputed or loaded. Reports contain only
strings and numbers.
"""

import types
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..pytorch import TORCH
from ..texts import count_text
from .readers import Role, dictionary_getter, type_attribute, type_name
from .storages import StorageKey, is_tensor, shape_of, storage_of
from .walk import Found, Visitor, walk

_MAX_PATHS = 32
_MAX_PARAMS = 8
_OTHERS_SHOWN = 4
_BYTES_PER_MB = 1e6


@dataclass(frozen=True, slots=True)
class GraphHolder:
    """One cluster of graphs that stay alive because a reachable object references their ends."""

    pattern: str
    """Pattern of most of the paths."""
    paths: tuple[str, ...]
    """Paths of the first 32 ends, those with this pattern first, then in the order of the walk."""
    num_paths: int
    nodes: int
    nbytes: int
    """Bytes kept alive only by the graph."""
    steps_deep: int
    """Number of uses of the most used parameter: the steps retained, in one chain or separately."""
    params: tuple[tuple[str, int], ...]
    """Paths of the parameters in the graph with their number of uses: at most 8, most used first."""
    oldest_sequence: int
    """Sequence number of its oldest node. If it stays constant between searches, no node is released."""
    freed: bool
    """Whether backward has freed the saved tensors and only nodes are left."""
    estimated: bool = False
    """Whether the numbers are extrapolated from a sample of a long container."""

    def text(self) -> str:
        """Return a sentence with the holder, the size, the most used parameter and the other holders."""
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
        """Return the change since a search that found the same pattern `steps` steps ago."""
        nodes, nbytes = self.nodes - before.nodes, self.nbytes - before.nbytes
        is_pinned = self.oldest_sequence == before.oldest_sequence
        return GraphGrowth(nodes / steps, nbytes / steps, is_pinned)

    def _size_text(self) -> str:
        if not _can_read_saved():
            return "of a size that this version of PyTorch does not report"
        if self.freed:
            return "with tensors freed by backward"
        return f"which keep {self.nbytes / _BYTES_PER_MB:.1f} MB of tensors"


@dataclass(frozen=True, slots=True)
class GraphGrowth:
    """Change of one holder's graphs between two searches."""

    nodes_per_step: float
    bytes_per_step: float
    pinned: bool
    """Whether the oldest node is unchanged, so no node is released. With a moving window it changes."""

    def text(self) -> str:
        """Return the change as text."""
        tensors = f" and {self.bytes_per_step:+,.0f} bytes of tensors" if round(self.bytes_per_step) else ""
        end = "the oldest node stays" if self.pinned else "the oldest nodes are released"
        return f"{self.nodes_per_step:+,.1f} nodes{tensors} per step; {end}"


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The holders of graphs found by one search, largest first."""

    holders: tuple[GraphHolder, ...]
    truncated: bool = False
    """Whether the search reached a limit and ended early."""


def find_graph_holders(
    roots: Mapping[str, Any], max_objects: int = 2_000_000, max_nodes: int = 3_000_000
) -> GraphReport:
    """Return the holders of autograd graphs that are reachable from the roots, largest first.

    The search runs no code of visited objects and no unpack hooks, copies no data, keeps no reference and
    synchronizes with no device.

    Cost: 4 us per object and 15 us per node.
    """
    found = walk(roots, max_objects)
    return measure_graphs([*found.leaves, *found.nodes], max_nodes, found.truncated)


def first_graph(roots: Mapping[str, Any], max_objects: int = 20_000) -> str | None:
    """Return the path of the first reachable tensor or node of an autograd graph, or `None`.

    The search follows no graph. It returns `None` after `max_objects`, so `None` is not a proof.

    Cost: 4 us per object, or 2 to 4 ms for a workflow of model=size12m (600 objects) and its replay.
    """
    visited = islice(Visitor().visit(roots.items()), max_objects)
    return next((found.path for found in visited if _node_of(found) is not None), None)


def measure_graphs(
    held: Iterable[Found],
    max_nodes: int = 3_000_000,
    truncated: bool = False,
    variables: Container[str] = (),
) -> GraphReport:
    """Return the graphs among the results of a walk. Memory with other references does not count.

    `variables` are the paths of variables. A variable is rebound at each step, but attributes and containers
    persist, so they are named first.
    """
    held_elsewhere: set[StorageKey] = set()
    names: dict[int, str] = {}
    ends: list[tuple[Found, Any]] = []
    for found in held:
        node = _node_of(found)
        if node is not None:
            ends.append((found, node))
            continue
        storage = storage_of(found.value)
        if storage is not None:
            held_elsewhere.add(storage.key)
        if is_tensor(found.value):
            names[id(found.value)] = found.path
    created = dict[str, int]()
    for found, node in ends:
        owner, number = _owner_of(found.path), node._sequence_nr()
        created[owner] = min(number, created.get(owner, number))
    # Nodes that an end outside a sample also reaches, such as a variable of the current step, count once. A
    # state is older than the tensors that other objects compute from it.
    ends.sort(key=lambda end: (end[0].weight, end[0].path in variables, created[_owner_of(end[0].path)]))
    clusters, is_complete = _clusters(ends, _Nodes(names, held_elsewhere), max_nodes)
    holders = sorted(map(_holder, clusters), key=lambda each: (-each.nbytes, -each.nodes))
    return GraphReport(tuple(holders), truncated or not is_complete)


def _owner_of(path: str) -> str:
    """Return the path of the object with this attribute or element, or the path itself for a root."""
    end = max(path.rfind("."), path.rfind("["))
    return path[:end] if end > 0 else path


def _holder(cluster: "_Cluster") -> GraphHolder:
    weights = Counter[str]()
    for end in cluster.ends:
        weights[end.pattern] += end.weight  # pyright: ignore[reportArgumentType]
    # The tensors of the current step share only new nodes with a carried state or a growing list.
    pattern = max(weights, key=lambda each: (cluster.old[each], weights[each]))
    ends = sorted(cluster.ends, key=lambda each: each.pattern != pattern)
    params = [(path, round(times)) for path, times in cluster.uses.most_common(_MAX_PARAMS)]
    return GraphHolder(
        pattern=pattern,
        paths=tuple(end.path for end in ends[:_MAX_PATHS]),
        num_paths=round(sum(weights.values())),
        nodes=round(cluster.nodes),
        nbytes=round(sum(cluster.storages.values())),
        steps_deep=params[0][1] if params else 0,
        params=tuple(params),
        oldest_sequence=-1 if cluster.oldest is None else cluster.oldest,
        freed=0 < cluster.saved == cluster.freed,
        estimated=cluster.estimated,
    )


def _abbreviated(path: str, first: str) -> str:
    """Abbreviate the prefix that a path shares with the first path, except for its last name."""
    shared = first.rpartition(".")[0]
    while shared and not path.startswith(f"{shared}."):
        shared = shared.rpartition(".")[0]
    start = shared.rfind(".") + 1
    return f"...{path[start:]}" if start else path


def grad_fn(value: Any) -> Any | None:
    """Return the node that produced a tensor, independent of overrides in a subclass."""
    core = TORCH.module._C
    with core.DisableTorchFunction():
        try:
            return core.TensorBase.grad_fn.__get__(value)
        except RuntimeError:
            # Several views of a base that was changed in place have no node.
            return None


def _can_read_saved() -> bool:
    """Return whether this version of PyTorch shows saved tensors. Otherwise only nodes are counted."""
    return hasattr(TORCH.module._C._autograd.SavedTensor, "data")


def _node_of(found: Found) -> Any | None:
    """Return the last node of the graph that an object keeps alive, or `None` without a graph."""
    if found.role is Role.node:
        return found.value
    return grad_fn(found.value) if is_tensor(found.value) else None


@dataclass(slots=True)
class _Cluster:
    """Graphs that belong together: releasing only one of their ends frees no memory."""

    ends: list[Found] = field(default_factory=list)
    """In the order of discovery."""
    chained: int = 0
    """Number of ends that share a node with another end of the same pattern."""
    nodes: float = 0.0
    old: Counter[str] = field(default_factory=Counter)
    """Number of nodes in the older half, by the pattern of the first end that reaches them."""
    estimated: bool = False
    storages: dict[StorageKey, float] = field(default_factory=dict)
    """Bytes of the storages kept alive by the nodes."""
    uses: Counter[str] = field(default_factory=Counter)
    """Number of uses of each parameter, by path."""
    oldest: int | None = None
    """Sequence number of the oldest node among the nodes created by its thread."""
    newest: int = -1
    """Sequence number of the newest node."""
    saved: int = 0
    freed: int = 0
    """Number of slots for saved tensors, and of slots already emptied by backward."""


class _Nodes:
    """Reads nodes of autograd graphs. How to read a type is determined once, when its first node is seen.

    `names` maps ids of known leaf tensors to paths. Storages in `held_elsewhere` are not counted.
    """

    def __init__(self, names: dict[int, str], held_elsewhere: set[StorageKey]) -> None:
        self._names = names
        self._held_elsewhere = held_elsewhere
        self._by_type: dict[type, tuple[bool, tuple[Any, ...], Any | None]] = {}

    def is_shared_leaf(self, node: Any) -> bool:
        """Return whether a node belongs to a parameter, and thus to every graph that uses the parameter."""
        return self._known(node)[0]

    def before(self, node: Any) -> list[Any]:
        """Return the nodes that produce a node's inputs."""
        return [previous for previous, _ in node.next_functions if previous is not None]

    def add(self, node: Any, cluster: _Cluster, weight: float) -> None:
        """Count a node of a cluster and the memory it keeps alive, for `weight` nodes."""
        cluster.nodes += weight
        cluster.estimated |= weight > 1.0
        if not self.is_shared_leaf(node):
            number = node._sequence_nr()
            cluster.oldest = number if cluster.oldest is None else min(cluster.oldest, number)
            cluster.newest = max(cluster.newest, number)
        for previous in filter(self.is_shared_leaf, self.before(node)):
            leaf = previous.variable
            name = self._names.get(id(leaf)) or f"<leaf {shape_of(leaf)}>"
            cluster.uses[name] += weight  # pyright: ignore[reportArgumentType]
        for tensor in self._tensors(node, cluster):
            storage = storage_of(tensor)
            if storage is not None and storage.key not in self._held_elsewhere:
                cluster.storages[storage.key] = weight * storage.nbytes

    def _tensors(self, node: Any, cluster: _Cluster) -> Iterator[Any]:
        """Yield the tensors that a node keeps alive, and count its slots for saved tensors."""
        is_leaf, saved, dictionary = self._known(node)
        for descriptor in saved if _can_read_saved() else ():
            try:
                slots: Any = descriptor.__get__(node)
            except RuntimeError:
                # A custom function raises if its tensors are freed.
                slots = None
            for slot in slots if type(slots) is tuple else (slots,):
                data = None if slot is None else slot.data
                cluster.saved += 1
                cluster.freed += data is None
                yield from _packed(data)
        # These are attributes that a custom function has set on its context.
        for value in list(dictionary.__get__(node).values()) if dictionary is not None else ():
            yield from filter(is_tensor, value if type(value) is list else (value,))
        if is_leaf:
            yield node.variable

    def _known(self, node: Any) -> tuple[bool, tuple[Any, ...], Any | None]:
        """Return whether a node is a leaf, and the descriptors of its saved tensors and its `__dict__`."""
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


def _clusters(ends: list[tuple[Found, Any]], reader: _Nodes, max_nodes: int) -> tuple[list[_Cluster], bool]:
    """Return the clusters of the graphs behind the given ends and nodes, and whether all nodes were visited.

    Ends that share a node form one cluster, and so do ends of the same pattern. All graphs of a parameter
    meet in the parameter's node, which therefore joins no clusters. The search stops after `max_nodes`.
    """
    # This is a union-find forest. The root of each tree is the first end of a cluster.
    parents = list(range(len(ends)))
    chained: set[int] = set()
    # Maps the id of a node to the node and the first end that reached it.
    reached: dict[int, tuple[Any, int]] = {}

    def first_end(end: int) -> int:
        while parents[end] != end:
            parents[end] = parents[parents[end]]
            end = parents[end]
        return end

    def join(one: int, other: int) -> None:
        first, second = sorted((first_end(one), first_end(other)))
        parents[second] = first

    first_of_pattern: dict[str, int] = {}
    for end, (found, _) in enumerate(ends):
        join(first_of_pattern.setdefault(found.pattern, end), end)
    is_complete = True
    for end, (found, last) in enumerate(ends):
        stack = [last]
        while stack:
            node = stack.pop()
            _, other = reached.get(id(node), (None, None))
            # The nodes behind it are already visited.
            if other is not None:
                if other != end and not reader.is_shared_leaf(node):
                    chained |= {other, end} if ends[other][0].pattern == found.pattern else set()
                    join(other, end)
                continue
            if len(reached) >= max_nodes:
                is_complete = False
                break
            # The reference prevents reuse of the id.
            reached[id(node)] = node, end
            stack.extend(reader.before(node))

    clusters: dict[int, _Cluster] = {}
    for end, (found, _) in enumerate(ends):
        cluster = clusters.setdefault(first_end(end), _Cluster())
        cluster.ends.append(found)
        cluster.chained += end in chained
    for node, end in reached.values():
        cluster = clusters[first_end(end)]
        # A chain also contains the nodes of the ends outside a sample.
        are_apart = cluster.chained <= len(cluster.ends) / 2
        reader.add(node, cluster, ends[end][0].weight if are_apart else 1.0)
    for node, end in reached.values():
        cluster = clusters[first_end(end)]
        if cluster.oldest is not None and node._sequence_nr() <= (cluster.oldest + cluster.newest) / 2:
            cluster.old[ends[end][0].pattern] += 1
    return list(clusters.values()), is_complete


def _packed(data: object) -> Iterator[Any]:
    """Yield the tensors in saved data, i.e. in any object that a `saved_tensors_hooks` hook packed."""
    stack = [data]
    while stack:
        value = stack.pop()
        if is_tensor(value):
            yield value
        elif type(value) is tuple or type(value) is list:
            stack.extend(value)
        elif type(value) is dict:
            stack.extend(value.values())
