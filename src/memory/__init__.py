"""Counters, holders and growth of memory, for any PyTorch program: docs/find_a_leak.md."""

from .checks import budget, no_growth
from .objects.graph_holders import find_graph_holders as graph_holders
from .watch.watch import Watch, track

__all__ = ["Watch", "budget", "graph_holders", "no_growth", "track"]
