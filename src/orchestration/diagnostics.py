"""What a log line says about memory and replay, and what the memory tracker follows."""

from collections.abc import Mapping
from typing import Any

from ..memory.objects.census import Component
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


def components(parts: AnyParts, others: Mapping[str, Any]) -> dict[str, Component]:
    """Return the parts of a run with what each plans to hold; made for one sample and dropped.

    Args:
        parts: Environment, replay, workflow.
        others: Further objects of the loop by the name to show, such as `metrics`; their `planned_bytes`,
            where they have such, is what they may grow to.
    """
    found = {f"replay/{name}": _declared(nbytes) for name, nbytes in parts.replay.part_bytes().items()}
    found["replay"] = Component()
    of_workflow = {name: Component(held) for name, held in parts.workflow.components().items()}
    groups = dict.fromkeys(name.partition("/")[0] for name in of_workflow if "/" in name)
    found |= of_workflow | {name: Component() for name in groups}  # sums of their parts
    found["environment"] = Component((parts.environment,), parts.environment.planned_bytes)
    return found | {
        name: Component((held,), getattr(held, "planned_bytes", None)) for name, held in others.items()
    }


def _declared(nbytes: int) -> Component:
    return Component(planned_bytes=nbytes, declared_bytes=nbytes)
