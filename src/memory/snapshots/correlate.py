"""Check that what a run logged to TensorBoard is what its snapshots hold."""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...utils.errors import UserError
from .summary import Summary

_GB = 1e9
ALLOCATED_TAG = "train/memory/gpu_allocated_gb"
RESERVED_TAG = "train/memory/gpu_reserved_gb"


@dataclass(frozen=True, slots=True)
class Correlation:
    """A logged scalar and the same quantity of the snapshots, each joined to the nearest logged step."""

    tag: str
    pearson_r: float | None
    """None for fewer than three snapshots, or if one of the two does not vary."""

    largest_difference_gb: float
    largest_distance_steps: int
    """Largest distance from a snapshot to the logged step it is joined to."""


def correlate(summaries: Sequence[Summary], events_dir: Path) -> list[Correlation]:
    """Join the snapshots to the scalars of allocated and of reserved memory, where these were logged.

    Raises:
        UserError: If the folder holds no TensorBoard events, or none of the two scalars.
    """
    logged = _read_scalars(events_dir)
    held = {
        ALLOCATED_TAG: {summary.step: summary.allocated_bytes / _GB for summary in summaries},
        RESERVED_TAG: {summary.step: summary.reserved_bytes / _GB for summary in summaries},
    }
    return [correlation(tag, held[tag], logged[tag]) for tag in held if tag in logged]


def correlation(tag: str, held_gb: Mapping[int, float], logged_gb: Mapping[int, float]) -> Correlation:
    """Join each value held to the nearest logged step, the earlier of two; both are GB by step."""
    logged_steps = sorted(logged_gb)
    nearest = [min(logged_steps, key=lambda other, step=step: abs(other - step)) for step in held_gb]
    held, logged = list(held_gb.values()), [logged_gb[step] for step in nearest]
    try:
        r = statistics.correlation(held, logged) if len(held) > 2 else None  # two points always lie on a line
    except statistics.StatisticsError:  # one of the two is constant
        r = None
    return Correlation(
        tag,
        r,
        max(abs(a - b) for a, b in zip(held, logged, strict=True)),
        max(abs(a - b) for a, b in zip(held_gb, nearest, strict=True)),
    )


def _read_scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Return by step those of the two scalars that were logged; of a step logged twice the last value."""
    # Here, not above: tensorboard's readers take 1 s to import, and most uses need none.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not os.access(folder, os.R_OK | os.X_OK):
        raise UserError(f"--events-dir {folder} is no folder that can be read.")
    # 0 keeps every point; by default a random sample of 10,000 is kept.
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = [tag for tag in (ALLOCATED_TAG, RESERVED_TAG) if tag in accumulator.Tags()["scalars"]]
    if not tags:
        raise UserError(
            f"--events-dir {folder} has no TensorBoard events with {ALLOCATED_TAG} or {RESERVED_TAG}; "
            "a run on CUDA writes them to its tensorboard/."
        )
    return {tag: {event.step: event.value for event in accumulator.Scalars(tag)} for tag in tags}
