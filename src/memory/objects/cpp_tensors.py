"""Find the tensors that no Python object refers to: C++ alone keeps them alive.

Looks at every object that the garbage collector knows, so it belongs after a suspicion and not into a loop.
"""

import gc
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .graph import grad_fn
from .heap import running_variables
from .readers import has_own_gradient, type_name
from .storages import is_tensor, storage_of
from .walk import walk

_TENSOR: Any = torch._C.TensorBase


@dataclass(frozen=True, slots=True)
class HeldByCpp:
    """Tensors of one kind that no Python object refers to."""

    kind: str
    shape: tuple[int, ...]
    made_by: str
    """Name of the node that made them, `leaf` without one."""

    is_cycle: bool
    """Whether their gradient has a graph itself: the cycle that `backward(create_graph=True)` leaves."""

    count: int = 0
    nbytes: int = 0

    @property
    def key(self) -> "HeldByCpp":
        """What they are, without how many: equal at two moments for tensors of one kind."""
        return replace(self, count=0, nbytes=0)

    def text(self) -> str:
        """Return one line."""
        cycle = ": grad has grad_fn, a create_graph cycle" if self.is_cycle else ""
        return (
            f"{self.count:,} x {self.kind} {self.shape} from {self.made_by}, {self.nbytes / 1e6:.1f} MB, "
            f"held by C++ only{cycle}"
        )


def cpp_tensors(roots: Mapping[str, Any]) -> list[HeldByCpp]:
    """Return the tensors that neither a root nor any Python object leads to, the most bytes first.

    Some are innocent: what a graph in use has saved. Parameters whose gradient carries a graph are not:
    parameter and gradient keep each other alive, and `gc.collect` does not free them.

    Cost: about 50 ms at 200,000 objects.
    """
    for o in gc.get_objects():
        if is_tensor(o) and has_own_gradient(o):
            _gradient(o)  # reading makes its Python object: now, or the next call would count more
    reached = {id(found.value) for found in walk(roots).leaves}
    existing = gc.get_objects()
    tensors = [o for o in existing if is_tensor(o) and id(o) not in reached]
    held = set(map(id, gc.get_referents(*[o for o in existing if not is_tensor(o)])))
    held |= {id(value) for _, _, value in running_variables()}
    counts: Counter[HeldByCpp] = Counter()
    nbytes: Counter[HeldByCpp] = Counter()
    for o in tensors:
        if id(o) not in held:
            key, storage = _kind_of(o), storage_of(o)
            counts[key] += 1
            nbytes[key] += storage.nbytes if storage is not None else 0
    found = [replace(key, count=count, nbytes=nbytes[key]) for key, count in counts.items()]
    return sorted(found, key=lambda row: (-row.nbytes, -row.count))


def _kind_of(value: Tensor) -> HeldByCpp:
    node = grad_fn(value)
    gradient = _gradient(value) if has_own_gradient(value) else None
    return HeldByCpp(
        kind=type_name(type(value)),
        shape=tuple(_TENSOR.shape.__get__(value)),
        made_by="leaf" if node is None else type_name(type(node)),
        is_cycle=gradient is not None and grad_fn(gradient) is not None,
    )


def _gradient(value: Tensor) -> Tensor | None:
    with torch._C.DisableTorchFunction():
        return _TENSOR.grad.__get__(value)
