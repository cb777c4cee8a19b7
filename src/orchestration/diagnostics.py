"""What a log line says about memory and replay, under the names of the incident reports."""

from typing import Any

from ..utils.memory.counters import host_memory_stats
from ..utils.memory.cuda import cuda_memory_stats
from .build import Parts

_NO_GPU = dict.fromkeys(("alloc_mb", "reserved_mb", "max_alloc_mb", "max_reserved_mb"), 0.0)


def memory_counters() -> dict[str, float]:
    """Return what the process and its GPU hold now, by tag; MB = 1e6 bytes. Without a GPU its tags are 0.

    Cost: that of `host_memory_stats` and `cuda_memory_stats`.
    """
    tags = {f"debug/gpu/{name}": value for name, value in (cuda_memory_stats() or _NO_GPU).items()}
    return tags | {f"debug/cpu/{name}": value for name, value in host_memory_stats().items()}


def diagnostics(counters: dict[str, float], parts: Parts[Any, Any]) -> dict[str, float]:
    """Return the tags of a log line: the counters, the incidents' own names for two of them, the replay.

    GB = 1e9 bytes.
    """
    return {
        **counters,
        "train/memory/gpu_allocated_gb": counters["debug/gpu/alloc_mb"] / 1e3,
        "train/memory/gpu_reserved_gb": counters["debug/gpu/reserved_mb"] / 1e3,
        **{f"buffer/replay/{name}": value for name, value in parts.replay.stats().items()},
    }
