"""Measure the cost of each counter, within 3 s: `python docs/results/memory/scripts/counter_costs.py`."""

import shutil
import timeit
from collections.abc import Callable

import torch
from heapwatch.counters import glibc, limits, process
from heapwatch.leaks.verdict import classify_trend
from heapwatch.objects.graph_holders import find_graph_holders, first_graph
from heapwatch.objects.walk import walk

from reverie.utils import footprint

READINGS, REPEATS = 4, 40
THINGS = 1000


def cost(name: str, call: Callable[[], object]) -> None:
    """Print the best of 40 means of 4 readings."""
    call()
    seconds = min(timeit.repeat(call, number=READINGS, repeat=REPEATS)) / READINGS
    print(f"{name:34s} {seconds * 1e6:10,.0f} us")


def chain() -> torch.Tensor:
    """Return a tensor with a graph of about 2,000 nodes."""
    weight = torch.ones(8, requires_grad=True)
    state = torch.zeros(8)
    for _ in range(THINGS):
        state = torch.tanh(state + weight)
    return state


if __name__ == "__main__":
    cost("process_rss_mb", process.process_rss_mb)
    cost("in_use_bytes", glibc.in_use_bytes)
    cost("kernel_counts", glibc.kernel_counts)
    cost("used shared memory", lambda: shutil.disk_usage("/dev/shm"))
    cost("open_files_count", process.open_files_count)
    cost("live_children", process.live_children)
    cost("host_memory_stats (all of these)", process.host_memory_stats)
    cost("process_tree_pss_bytes", footprint.process_tree_pss_bytes)
    cost("memory_available_bytes", limits.memory_available_bytes)
    cost("judge, 96 samples", lambda: classify_trend([1e6 * sample for sample in range(96)], 1e6))
    objects = {"store": [[torch.ones(1)] for _ in range(THINGS // 2)]}
    cost("walk, 1,001 objects", lambda: walk(objects))
    cost("first_graph, 1,001 objects", lambda: first_graph(objects))
    graph = {"state": chain()}
    nodes = find_graph_holders(graph).holders[0].nodes
    cost(f"find_graph_holders, {nodes:,} nodes", lambda: find_graph_holders(graph))
