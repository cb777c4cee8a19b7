"""Name what holds the memory that grew: graphs, objects of the Python heap, or nobody in Python."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .graph_holders import GraphReport, find_graph_holders, graph_growth
from .heap import Heap, measure_heap

NATIVE = "no Python object holds it: native memory of a library or an extension"
TOO_SMALL = "too small to name yet"
ELSEWHERE = "neither the run nor the user's own modules hold it: the whole Python heap is searched next"

_TOP = 3
_LEAST_BYTES = 20_000  # growth below this is noise of any run
_LEAST_SHARE = 0.1  # of the largest holder's growth, below which another one is not worth a line
_NODE_BYTES = 200  # of one node of a graph, about
_EXPLAINED = 0.2  # share of the growth below which what holds it is not found yet


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was held at one step, to be compared with a later one; texts and numbers only."""

    step: int
    heap: Heap


@dataclass(frozen=True, slots=True)
class GrowthSources:
    """What holds the memory that grew."""

    lines: tuple[str, ...]
    """One for each likely holder, the surest first."""
    is_named: bool = True
    """Whether they name a holder, or say for certain that nobody in Python is one."""


def baseline(roots: Mapping[str, Any], step: int, is_whole: bool = False) -> Baseline:
    """Return what each path of the Python heap holds now; `is_whole` includes libraries.

    Cost: that of `measure_heap`; for when growth is suspected.
    """
    return Baseline(step, measure_heap(roots, is_whole))


def graph_sources(roots: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one line for each of the largest autograd graphs that the roots hold.

    Cost: a walk, and 15 us for each node of a graph.
    """
    return tuple(holder.text() for holder in find_graph_holders(roots).holders[:_TOP])


def growth_sources(
    roots: Mapping[str, Any], step: int, before: Baseline, rise_bytes: float, device: str = "cpu"
) -> GrowthSources:
    """Return what holds the memory that grew since `before`.

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

    Cost: that of `measure_heap`.
    """
    least = max(_LEAST_BYTES, _EXPLAINED * rise_bytes)
    now = measure_heap(roots, before.heap.is_whole)
    risen = now.totals.get(device, 0.0) - before.heap.totals.get(device, 0.0)
    lines = _grown_graphs(before.heap.graphs, now.graphs, max(1, step - before.step), least)
    if lines or risen >= _EXPLAINED * rise_bytes:
        lines += _grown_paths(before.heap.held.get(device, {}), now.held.get(device, {}))
        return GrowthSources(tuple(lines)) if lines else GrowthSources((TOO_SMALL,), is_named=False)
    if rise_bytes < _LEAST_BYTES:
        return GrowthSources((TOO_SMALL,), is_named=False)
    if not now.is_whole:
        return GrowthSources((ELSEWHERE,), is_named=False)
    part = f"the Python heap grew by {max(risen, 0) / 1e6:.2f} of {rise_bytes / 1e6:.2f} MB"
    return GrowthSources((f"{NATIVE} ({part})",))


def _grown_graphs(before: GraphReport, after: GraphReport, steps: int, least: float) -> list[str]:
    """Return the largest graphs of `least` bytes that are new or have grown, each with how it did."""
    growths = {} if after.truncated else graph_growth(before.holders, after.holders, steps)
    lines = []
    for holder in after.holders:
        growth = growths.get(holder.pattern)
        if max(holder.nbytes, holder.nodes * _NODE_BYTES) < least:
            continue
        if growth is None:
            lines.append(holder.text())
        elif growth.nodes_per_step > 0 or growth.bytes_per_step > 0:
            lines.append(f"{holder.text()}; {growth.text()}")
    return lines[:_TOP]


def _grown_paths(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Return a line for each path that holds far more bytes than before."""
    growth = {path: nbytes - before.get(path, 0.0) for path, nbytes in after.items()}
    largest = sorted(growth, key=lambda path: -growth[path])[:_TOP]
    least = max(_LEAST_BYTES, _LEAST_SHARE * growth[largest[0]]) if largest else 0.0
    return [f"{path} holds {growth[path] / 1e6:,.2f} MB more" for path in largest if growth[path] > least]
