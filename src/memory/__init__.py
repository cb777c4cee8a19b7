"""Memory counters of this process and of its GPU; sizes, graphs and growth of what a training loop holds."""

from .counters.cuda import gpu_memory_stats
from .counters.process import process_rss_mb

__all__ = ["gpu_memory_stats", "process_rss_mb"]
