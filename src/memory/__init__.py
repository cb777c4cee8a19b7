"""Memory counters and leak checks, from heapwatch; the settings and the guard of a run."""

from typing import TYPE_CHECKING

from ..utils.public_names import public_names

if TYPE_CHECKING:
    from heapwatch import Watch as Watch
    from heapwatch import budget as budget
    from heapwatch import graph_holders as graph_holders
    from heapwatch import no_growth as no_growth
    from heapwatch import track as track
    from heapwatch.counters.cuda import gpu_memory_stats as gpu_memory_stats
    from heapwatch.counters.process import process_rss_mb as process_rss_mb

__all__ = ["Watch", "budget", "gpu_memory_stats", "graph_holders", "no_growth", "process_rss_mb", "track"]

_HOMES = {
    "Watch": "heapwatch.Watch",
    "budget": "heapwatch.budget",
    "gpu_memory_stats": "heapwatch.counters.cuda.gpu_memory_stats",
    "graph_holders": "heapwatch.graph_holders",
    "no_growth": "heapwatch.no_growth",
    "process_rss_mb": "heapwatch.counters.process.process_rss_mb",
    "track": "heapwatch.track",
}

__getattr__, __dir__ = public_names(__name__, _HOMES)
