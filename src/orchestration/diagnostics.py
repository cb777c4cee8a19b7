"""What a log line says about memory and replay, under the names of the incident reports."""

from .parts import AnyParts


def diagnostics(counters: dict[str, float], parts: AnyParts) -> dict[str, float]:
    """Return the tags of a log line: the counters, the incidents' own names for two of them, the replay.

    GB = 1e9 bytes.
    """
    return {
        **counters,
        "train/memory/gpu_allocated_gb": counters["debug/gpu/alloc_mb"] / 1e3,
        "train/memory/gpu_reserved_gb": counters["debug/gpu/reserved_mb"] / 1e3,
        **{f"buffer/replay/{name}": value for name, value in parts.replay.stats().items()},
    }
