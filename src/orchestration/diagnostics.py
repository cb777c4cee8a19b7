"""What a log line says about memory and replay, under the names of the incident reports."""

from ..utils.memory.counters import gpu_memory_stats, host_memory_stats
from ..utils.memory.process import live_children_count
from .build import Parts

_NO_GPU = dict.fromkeys(("alloc_mb", "reserved_mb", "max_alloc_mb", "max_reserved_mb"), 0.0)


def diagnostics(parts: Parts) -> dict[str, float]:
    """Return the current values by tag; MB = 1e6 bytes, GB = 1e9 bytes. Without a GPU its tags are 0.

    Cost: 2 ms, most of it for counting child processes.
    """
    gpu = gpu_memory_stats() or _NO_GPU
    tags = {f"debug/gpu/{name}": value for name, value in gpu.items()}
    tags["train/memory/gpu_allocated_gb"] = gpu["alloc_mb"] / 1e3
    tags["train/memory/gpu_reserved_gb"] = gpu["reserved_mb"] / 1e3
    host = host_memory_stats() | {"children_count": float(live_children_count())}
    tags |= {f"debug/cpu/{name}": value for name, value in host.items()}
    return tags | {f"buffer/replay/{name}": value for name, value in parts.replay.stats().items()}
