"""Counters, holders and growth of memory, for any PyTorch program: docs/find_a_leak.md."""

from typing import TYPE_CHECKING

from ..utils.public_names import public_names

if TYPE_CHECKING:
    from .checks import budget as budget
    from .checks import no_growth as no_growth
    from .objects.graph_holders import find_graph_holders as graph_holders
    from .watch.watch import Watch as Watch
    from .watch.watch import track as track

__all__ = ["Watch", "budget", "graph_holders", "no_growth", "track"]

_HOMES = {
    "Watch": "watch.watch.Watch",
    "budget": "checks.budget",
    "graph_holders": "objects.graph_holders.find_graph_holders",
    "no_growth": "checks.no_growth",
    "track": "watch.watch.track",
}

__getattr__, __dir__ = public_names(__name__, _HOMES)
