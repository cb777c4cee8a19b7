"""The cheap check of every few updates: at a step's border nothing long-lived carries an autograd graph."""

from collections.abc import Mapping
from typing import Any

from .children import Role
from .graph import grad_fn
from .storages import is_tensor
from .walk import Leaf, Walk, traverse


def first_graph(roots: Mapping[str, Any], max_objects: int = 20_000) -> str | None:
    """Return the path of the first reachable tensor, or node, of an autograd graph; None without one.

    Looks at `grad_fn` alone and follows no graph; `find_anchors` says what such a graph holds. As in `walk`,
    a sample of a long container is looked at, its last element included, and no code of the objects runs.

    Args:
        roots: Long-lived objects by name.
        max_objects: Objects after which it gives up, and answers None: a limit on time, not a proof.

    Cost: 4 us an object; 2 to 4 ms for a workflow of model=size12m (600 objects) and its replay.
    """
    paths: list[str] = []

    def has_graph(role: Role, leaf: Leaf) -> bool:
        if role is Role.node or (is_tensor(leaf.value) and grad_fn(leaf.value) is not None):
            paths.append(leaf.path)
        return bool(paths)

    traverse(roots, max_objects, has_graph, Walk())
    return paths[0] if paths else None
