"""Whether what a run logged to TensorBoard is what its snapshots hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...utils.errors import UserError
from .summary import Summary

_GB = 1e9
ALLOCATED_TAG = "train/memory/gpu_allocated_gb"
RESERVED_TAG = "train/memory/gpu_reserved_gb"


@dataclass(frozen=True, slots=True)
class Correlation:
    """A logged scalar beside the same quantity of the snapshots, each joined to the nearest logged step."""

    tag: str
    steps: tuple[int, ...]
    logged_steps: tuple[int, ...]
    snapshot_gb: tuple[float, ...]
    logged_gb: tuple[float, ...]
    pearson_r: float | None
    """None if there are under three snapshots, or one of the two does not vary."""

    @property
    def largest_difference_gb(self) -> float:
        """Largest distance between the two at one snapshot."""
        return max(abs(a - b) for a, b in zip(self.snapshot_gb, self.logged_gb, strict=True))

    @property
    def largest_distance_steps(self) -> int:
        """Largest distance from a snapshot to the logged step it is joined to."""
        return max(abs(a - b) for a, b in zip(self.steps, self.logged_steps, strict=True))


def correlate(summaries: Sequence[Summary], events_dir: Path) -> list[Correlation]:
    """Join the snapshots to the scalars of allocated and of reserved memory, where these were logged.

    Cost: 0.1 s for each 5,000 logged points.

    Raises:
        UserError: If the folder holds no TensorBoard events, or none of the two scalars.
    """
    scalars = _read_scalars(events_dir)
    quantities = {
        ALLOCATED_TAG: [summary.allocated_bytes / _GB for summary in summaries],
        RESERVED_TAG: [summary.reserved_bytes / _GB for summary in summaries],
    }
    steps = [summary.step for summary in summaries]
    return [_join(tag, steps, values, scalars[tag]) for tag, values in quantities.items() if tag in scalars]


def _join(tag: str, steps: list[int], snapshot_gb: list[float], logged: dict[int, float]) -> Correlation:
    """Join each snapshot to the nearest logged step, the earlier of two."""
    known = sorted(logged)
    nearest = [min(known, key=lambda other, step=step: abs(other - step)) for step in steps]
    logged_gb = [logged[step] for step in nearest]
    return Correlation(
        tag,
        tuple(steps),
        tuple(nearest),
        tuple(snapshot_gb),
        tuple(logged_gb),
        pearson_r(snapshot_gb, logged_gb),
    )


def pearson_r(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return Pearson's correlation; None where it is not defined.

    >>> pearson_r([1.0, 2.0, 3.0], [-1.0, 0.0, -1.0])
    0.0
    """
    if len(x) < 3:  # two points always lie on a line
        return None
    a, b = np.asarray(x) - np.mean(x), np.asarray(y) - np.mean(y)
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.clip(a @ b / norm, -1, 1)) if norm > 0 else None


def _read_scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Return by step those of the two scalars that were logged; of a step logged twice the last value."""
    # Here, not above: tensorboard's readers take 1 s to import, and most uses need none.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    try:
        has_events = any("tfevents" in path.name for path in folder.iterdir())
    except OSError as error:
        raise UserError(f"--events-dir {folder} cannot be read: {error.strerror}.") from error
    if not has_events:
        raise UserError(
            f"--events-dir {folder} holds no TensorBoard events; a run keeps them in its tensorboard/."
        )
    # 0 keeps every point; by default a random sample of 10,000 is kept.
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = [tag for tag in (ALLOCATED_TAG, RESERVED_TAG) if tag in accumulator.Tags()["scalars"]]
    if not tags:
        raise UserError(
            f"--events-dir {folder} has neither {ALLOCATED_TAG} nor {RESERVED_TAG}: a run without CUDA?"
        )
    return {tag: {event.step: event.value for event in accumulator.Scalars(tag)} for tag in tags}
