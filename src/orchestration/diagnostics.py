"""What a run says about its memory and its replay, under the names of the incident reports."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ..utils.memory import gpu_memory_stats, process_rss_mb
from .build import Parts

_BYTES_PER_MB = 1e6
_NO_GPU = dict.fromkeys(("alloc_mb", "reserved_mb", "max_alloc_mb", "max_reserved_mb"), 0.0)


class Diagnostics:
    """Sizes of the run's parts and of the process, read at log intervals; holds numbers only."""

    def __init__(self) -> None:
        self._last_mb: dict[str, float] = {}

    def read(self, parts: Parts) -> dict[str, float]:
        """Return the current values by tag; MB = 1e6 bytes, GB = 1e9 bytes. Without a GPU its tags are 0."""
        gpu = gpu_memory_stats() or _NO_GPU
        tags = {f"debug/gpu/{name}": value for name, value in gpu.items()}
        tags["train/memory/gpu_allocated_gb"] = gpu["alloc_mb"] / 1e3
        tags["train/memory/gpu_reserved_gb"] = gpu["reserved_mb"] / 1e3
        tags["debug/cpu/rss_mb"] = process_rss_mb()
        tags |= {f"buffer/replay/{name}": value for name, value in parts.replay.stats().items()}
        for name, size_mb in _sizes_mb(parts).items():
            tags[f"memory/{name}/size_mb"] = size_mb
            tags[f"memory/{name}/growth_mb_per_report"] = size_mb - self._last_mb.get(name, size_mb)
            self._last_mb[name] = size_mb
        return tags


def _sizes_mb(parts: Parts) -> dict[str, float]:
    workflow = parts.workflow
    modules = (workflow.world_model, workflow.controller)
    networks = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    optimizers = [optimizer.state_dict() for optimizer in workflow.optimizers.values()]
    return {
        "replay": parts.replay.nbytes() / _BYTES_PER_MB,
        "networks": _bytes(networks) / _BYTES_PER_MB,
        "optimizers": sum(_bytes(_tensors(state.values())) for state in optimizers) / _BYTES_PER_MB,
    }


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    return [tensor for value in values for tensor in (value if isinstance(value, list) else [value])]


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
