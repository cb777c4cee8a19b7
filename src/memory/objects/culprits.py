"""Who holds what grew: graphs, objects of the whole Python heap, what only C++ knows, or nobody in Python."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .anchors import Anchor, find_anchors
from .heap import Heap, measure_heap
from .orphans import cpp_held, orphan_heads
from .trend import compare

NATIVE = "no Python object holds it: native memory of a library or an extension"
TOO_SMALL = "too small to name yet"
ELSEWHERE = "neither the run nor the user's own modules hold it: the whole Python heap is searched next"

_TOP = 3
_LEAST_BYTES = 20_000  # growth below this is noise of any run
_LEAST_SHARE = 0.1  # of the largest holder's growth, below which another one is not worth a line
_NODE_BYTES = 200  # of one node of a graph, about
_EXPLAINED = 0.2  # share of the growth below which what holds it is not found yet


@dataclass(frozen=True, slots=True)
class Known:
    """What was held at one step, to be compared with a later one; texts and numbers only."""

    step: int
    heap: Heap
    anchors: tuple[Anchor, ...]
    """Graphs that the roots reach, and graphs that something else in Python holds."""

    of_cpp: dict[tuple[object, ...], int]
    """Bytes of the tensors that only C++ holds, by what they are; empty where `heap` is not whole."""


@dataclass(frozen=True, slots=True)
class Culprits:
    """Who holds what grew."""

    lines: tuple[str, ...]
    """One for each likely holder, the surest first."""

    is_named: bool = True
    """Whether they name a holder, or say for certain that nobody in Python is one."""


def known(roots: Mapping[str, Any], step: int, is_whole: bool = False) -> Known:
    """Return what each path of the Python heap holds now; `is_whole` includes libraries.

    Cost: as `measure_heap`, and a search for graphs through all objects; for when growth is suspected.
    """
    reached, others = find_anchors(roots), orphan_heads(roots)
    of_cpp = {held.key: held.nbytes for held in cpp_held(roots, sys.maxsize)} if is_whole else {}
    return Known(step, measure_heap(roots, is_whole), (*reached.anchors, *others.anchors), of_cpp)


def graph_culprits(roots: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one line for each of the largest autograd graphs that the roots hold.

    Cost: a walk, and 13 us for each node of a graph.
    """
    return tuple(anchor.text() for anchor in find_anchors(roots).anchors[:_TOP])


def culprits(
    roots: Mapping[str, Any], step: int, before: Known, rise_bytes: float, device: str = "cpu"
) -> Culprits:
    """Return who holds what grew since `before`.

    Args:
        roots: Long-lived objects by name; paths begin there. What they do not reach is named by module, class
            or running function.
        step: Agent steps taken so far.
        before: What was held when growth was first suspected.
        rise_bytes: Growth since then, by the counter that raised the suspicion.
        device: Kind of device whose memory grew, "cpu" or "cuda".

    Returns:
        Native memory is named only where the whole heap was measured and did not grow. Where `before` is not
        the whole heap and does not explain the growth, the one line is `ELSEWHERE`.

    Cost: that of `measure_heap`, and of searches for graphs through all objects of the process (1 s).
    """
    least = max(_LEAST_BYTES, _EXPLAINED * rise_bytes)
    lines = _graphs(roots, step, before, least)
    now = measure_heap(roots, before.heap.is_whole)
    risen = now.totals.get(device, 0.0) - before.heap.totals.get(device, 0.0)
    if now.is_whole:
        of_cpp = cpp_held(roots, sys.maxsize)
        lines += [h.text() for h in of_cpp if h.nbytes - before.of_cpp.get(h.key, 0) > least][:_TOP]
    if lines or risen >= _EXPLAINED * rise_bytes:
        lines += _grown(before.heap.held.get(device, {}), now.held.get(device, {}))
        return Culprits(tuple(lines)) if lines else Culprits((TOO_SMALL,), is_named=False)
    if rise_bytes < _LEAST_BYTES:
        return Culprits((TOO_SMALL,), is_named=False)
    if not now.is_whole:
        return Culprits((ELSEWHERE,), is_named=False)
    part = f"the Python heap grew by {max(risen, 0) / 1e6:.2f} of {rise_bytes / 1e6:.2f} MB"
    return Culprits((f"{NATIVE} ({part})",))


def _graphs(roots: Mapping[str, Any], step: int, before: Known, least: float) -> list[str]:
    """Return the largest graphs of `least` bytes that are new or have grown, each with how it did."""
    reached, others = find_anchors(roots), orphan_heads(roots)
    now = (*reached.anchors, *others.anchors)
    trends = {trend.owner: trend for trend in compare(before.anchors, now, max(1, step - before.step))}
    lines = []
    for anchor in now:
        trend = trends.get(anchor.owner)
        is_cut = (
            others.truncated and anchor in others.anchors
        )  # no more than that was looked at before, either
        if max(anchor.nbytes, anchor.nodes * _NODE_BYTES) < least:
            continue
        if trend is None or is_cut:
            lines.append(anchor.text())
        elif trend.nodes_per_step > 0 or trend.bytes_per_step > 0:
            lines.append(f"{anchor.text()}; {trend.text()}")
    return lines[:_TOP]


def _grown(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Return a line for each path that holds far more bytes than before."""
    growth = {path: nbytes - before.get(path, 0.0) for path, nbytes in after.items()}
    largest = sorted(growth, key=lambda path: -growth[path])[:_TOP]
    least = max(_LEAST_BYTES, _LEAST_SHARE * growth[largest[0]]) if largest else 0.0
    return [f"{path} holds {growth[path] / 1e6:,.2f} MB more" for path in largest if growth[path] > least]
