"""Memory counters of this process and of its GPU."""

from .counters.stats import gpu_memory_stats as gpu_memory_stats
from .counters.stats import process_rss_mb as process_rss_mb
