"""Memory that no named root leads to: graphs in module globals and frames, and tensors that only C++ holds.

For when the anchors do not explain what is held. Looks at every object that the garbage collector knows, so
it belongs after a suspicion and not into a loop.
"""

import gc
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .anchors import AnchorReport, measure
from .graph import Nodes, grad_fn
from .readers import has_own_gradient, type_name
from .referrers import held_by_python, holder_names
from .storages import is_tensor, storage_of
from .walk import Leaf, walk

_TENSOR: Any = torch._C.TensorBase


def orphan_heads(roots: Mapping[str, Any], max_heads: int = 16, max_nodes: int = 3_000_000) -> AnchorReport:
    """Return the graphs that no root reaches and that Python holds, named by what holds them.

    Owners read `module trainer.TRACE[3]`, `class trainer.Agent.cache['x']` or `frame train:12 losses[0]`.

    Args:
        roots: What is known already; its graphs are left out.
        max_heads: Ends of graphs whose holders are searched for.
        max_nodes: Nodes after which it stops.

    Cost: about 50 ms, and 50 ms for each container between tensor and holder, at 200,000 objects.
    """
    known = walk(roots)
    existing = gc.get_objects()
    with torch._C.DisableTorchFunction():
        reached = [leaf.value for leaf in known.leaves if is_tensor(leaf.value)]
        reached_ids = set(map(id, reached))
        ends = [o for o in existing if is_tensor(o) and grad_fn(o) is not None and id(o) not in reached_ids]
        interior = _consumed_nodes([*ends, *reached], max_nodes)
        held = held_by_python(existing, ends)
        heads = [o for o in ends if id(o) in held and id(grad_fn(o)) not in interior]
        names = holder_names(heads[:max_heads], set(map(id, existing)))
        leaves = [Leaf(name, name, head) for head, name in zip(heads, names, strict=False)]
        anchors, is_complete = measure(leaves, known.leaves, max_nodes)
    return AnchorReport(anchors, len(existing), not is_complete or len(heads) > max_heads)


@dataclass(frozen=True, slots=True)
class HeldByCpp:
    """Tensors of one kind that no Python object refers to: C++ alone keeps them alive."""

    kind: str
    shape: tuple[int, ...]
    made_by: str
    """Name of the node that made them, `leaf` without one."""

    count: int
    nbytes: int
    is_cycle: bool
    """Whether their gradient has a graph itself: the cycle that `backward(create_graph=True)` leaves."""

    @property
    def key(self) -> tuple[object, ...]:
        """What they are, without how many: equal at two moments for tensors of one kind."""
        return self.kind, self.shape, self.made_by, self.is_cycle

    def text(self) -> str:
        """Return one line."""
        cycle = ": grad has grad_fn, a create_graph cycle" if self.is_cycle else ""
        return (
            f"{self.count:,} x {self.kind} {self.shape} from {self.made_by}, {self.nbytes / 1e6:.1f} MB, "
            f"held by C++ only{cycle}"
        )


def cpp_held(roots: Mapping[str, Any], limit: int = 8) -> list[HeldByCpp]:
    """Return the tensors that neither a root nor any Python object leads to, the most bytes first.

    Some are innocent: what a graph in use has saved. Parameters whose gradient carries a graph are not:
    parameter and gradient keep each other alive for ever, and `gc.collect` does not free them.

    Cost: about 50 ms at 200,000 objects.
    """
    for o in gc.get_objects():
        if is_tensor(o) and has_own_gradient(o):
            _TENSOR.grad.__get__(o)  # reading makes its Python object: now, or the next call would count more
    known = walk(roots)
    existing = gc.get_objects()
    reached = {id(leaf.value) for leaf in known.leaves}
    tensors = [o for o in existing if is_tensor(o) and id(o) not in reached]
    held = held_by_python(existing, tensors)
    rows: Counter[tuple[str, tuple[int, ...], str, bool]] = Counter()
    nbytes: Counter[tuple[str, tuple[int, ...], str, bool]] = Counter()
    with torch._C.DisableTorchFunction():
        for o in tensors:
            if id(o) not in held:
                row = _row(o)
                storage = storage_of(o)
                rows[row] += 1
                nbytes[row] += storage.nbytes if storage is not None else 0
    found = [HeldByCpp(*row[:3], count, nbytes[row], row[3]) for row, count in rows.items()]
    return sorted(found, key=lambda row: (-row.nbytes, -row.count))[:limit]


def _row(value: Tensor) -> tuple[str, tuple[int, ...], str, bool]:
    """Return kind, shape, maker and whether the gradient has a graph."""
    node = grad_fn(value)
    gradient = _TENSOR.grad.__get__(value) if has_own_gradient(value) else None
    made_by = "leaf" if node is None else type_name(type(node))
    is_cycle = gradient is not None and grad_fn(gradient) is not None
    return type_name(type(value)), tuple(_TENSOR.shape.__get__(value)), made_by, is_cycle


def _consumed_nodes(tensors: Iterable[Tensor], max_nodes: int) -> dict[int, Any]:
    """Return the nodes, by id, whose results went into the making of one of the tensors."""
    reader, found = Nodes({}), dict[int, Any]()
    ends = [node for node in map(grad_fn, tensors) if node is not None]
    stack = [before for node in ends for before in reader.before(node)]
    while stack and len(found) < max_nodes:
        node = stack.pop()
        if id(node) not in found:
            found[id(node)] = node
            stack.extend(reader.before(node))
    return found
