"""Who holds what grew: graphs, containers, globals, and what only C++ knows."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .anchors import AnchorReport, find_anchors
from .orphans import cpp_held, orphan_heads
from .storages import storage_of
from .trend import compare
from .walk import Walk, walk

_TOP = 3
_LEAST_BYTES = 20_000  # growth below this is noise of any run
_LEAST_ELEMENTS = 300
_NUMBERED = re.compile(r"\[[^\]]*\d[^\]]*\]|<\w+ \d+>")


@dataclass(frozen=True, slots=True)
class Holding:
    """What lies under one path, over all its numbered elements."""

    nbytes: float = 0.0
    """Bytes of storages, each counted once at its first owner."""

    elements: float = 0.0
    """Elements of containers."""


Holdings = dict[str, Holding]
"""By path, numbers of elements written `[*]`; texts and numbers only."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was held at one step, to be compared with a later one; texts and numbers only."""

    step: int
    holdings: Holdings
    anchors: AnchorReport


def known(roots: Mapping[str, Any], step: int) -> Known:
    """Return what each path holds now.

    Cost: that of two walks, about 6 us an object.
    """
    return Known(step, _holdings(walk(roots)), find_anchors(roots))


def culprits(roots: Mapping[str, Any], step: int, before: Known | None, top: int = _TOP) -> tuple[str, ...]:
    """Return one line for each likely holder of what grew, the surest first.

    Args:
        roots: Long-lived objects by name; paths begin there.
        step: Agent steps taken so far.
        before: What was held when growth was last known to be none; None leaves containers out.
        top: Most lines of each kind.

    Cost: a walk, 13 us for each node of a graph, and a search through all objects of the process
        (0.7 s) where no root explains the growth.
    """
    lines = _graphs(find_anchors(roots), step, before, top)
    larger, longer = ([], []) if before is None else _grown(before.holdings, _holdings(walk(roots)), top)
    lines += larger
    if not lines:
        lines += [orphan.text() for orphan in orphan_heads(roots).anchors[:top]]
        lines += [held.text() for held in cpp_held(roots)[:top] if held.nbytes > _LEAST_BYTES]
    lines += longer
    return tuple(lines or ["no Python object holds it: native memory of a library or an extension"])


def _graphs(now: AnchorReport, step: int, before: Known | None, top: int) -> list[str]:
    """Return the largest graphs, each with how it grew where it was known before."""
    trends = {}
    if before is not None and step > before.step:
        trends = {trend.owner: trend.text() for trend in compare(before.anchors, now, step - before.step)}
    return [
        f"{anchor.text()}; {trends[anchor.owner]}" if anchor.owner in trends else anchor.text()
        for anchor in now.anchors[:top]
    ]


def _holdings(found: Walk) -> Holdings:
    held: dict[str, list[float]] = {}
    seen = set()
    for leaf in found.leaves:
        storage = storage_of(leaf.value)
        if storage is not None and storage.key not in seen:
            seen.add(storage.key)
            held.setdefault(_pattern(leaf.path), [0.0, 0.0])[0] += leaf.weight * storage.nbytes
    for path, length in found.lengths.items():
        held.setdefault(_pattern(path), [0.0, 0.0])[1] += length
    return {path: Holding(*numbers) for path, numbers in held.items()}


def _pattern(path: str) -> str:
    return _NUMBERED.sub("[*]", path)


def _grown(before: Holdings, after: Holdings, top: int) -> tuple[list[str], list[str]]:
    """Return the paths that hold more bytes than before, and those that hold more elements."""
    none = Holding()
    growth = {
        path: (now.nbytes - before.get(path, none).nbytes, now.elements - before.get(path, none).elements)
        for path, now in after.items()
    }
    by_bytes = sorted((p for p in growth if growth[p][0] > _LEAST_BYTES), key=lambda p: -growth[p][0])
    by_elements = sorted((p for p in growth if growth[p][1] > _LEAST_ELEMENTS), key=lambda p: -growth[p][1])
    return (
        [f"{p} holds {growth[p][0] / 1e6:,.1f} MB more" for p in by_bytes[:top]],
        [f"{p} holds {growth[p][1]:,.0f} elements more" for p in by_elements[:top]],
    )
