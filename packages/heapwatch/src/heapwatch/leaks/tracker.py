"""Track the size of each component of a run, and its changes."""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

from ..errors import UsageError
from ..objects.census import Census, Component, Size, measure_components, parent_component
from .detector import LeakDetector
from .table import ComponentRow, MemoryReport

_BYTES_PER_MB = 1e6
_Components = Mapping[str, Component]
_NOTHING = Size(0, 0, ())
_TOTAL = "total"
_MOST_SAMPLED_SHOWN = 3


@dataclass(slots=True)
class _Followed:
    """Statistics of one component."""

    detector: LeakDetector
    size: Size = _NOTHING
    planned_bytes: int | None = None
    reported_bytes: int | None = None
    """Size at the previous report, or at the first sample before any report."""
    is_gone: bool = False


class MemoryTracker:
    """Tracks the sizes of a run's components.

    The tracker keeps names and numbers, and no object alive. Samples and reports add nothing beyond the
    window of 96 samples per component.
    """

    def __init__(self, threshold_mb: float = 1.0) -> None:
        self._tolerance_bytes = threshold_mb * _BYTES_PER_MB
        # Thresholds in bytes of the components with their own threshold.
        self._thresholds: dict[str, float] = {}
        self._followed: dict[str, _Followed] = {}
        self._total = self._new(_TOTAL)
        self._bytes_by_device: dict[str, int] = {}
        self._notes: tuple[str, ...] = ()
        # Step of the previous report, or of the first sample.
        self._since_step: int | None = None

    def set_threshold(self, name: str, threshold_mb: float) -> None:
        """Set the growth that counts as flat for a component that has not been sampled yet."""
        self._thresholds[name] = threshold_mb * _BYTES_PER_MB

    def sample(self, step: int, components: _Components, is_after_pause: bool = False) -> bool:
        """Measure all components, and return whether any of them was judged again.

        Call this at equally spaced steps and at a fixed phase, with ordered components
        (`measure_components`). `is_after_pause` marks the first sample of a phase of updates.
        """
        own = measure_components(components)
        beyond_plan, total_beyond_plan = _beyond_plan(own, components)
        self._since_step = step if self._since_step is None else self._since_step
        # Use the census's order: components precede their parts. Components that no longer exist come last.
        names = dict.fromkeys((*own.sizes, *self._followed))
        self._followed = {name: self._followed.get(name) or self._new(name) for name in names}
        is_judged_anew = False
        for name, followed in self._followed.items():
            followed.size, followed.is_gone = own.sizes.get(name, _NOTHING), name not in own.sizes
            followed.planned_bytes = components[name].planned_bytes if name in components else None
            value = beyond_plan.get(name, followed.size.pinned_bytes)
            is_judged_anew |= followed.detector.add(step, value, is_after_pause)
        self._total.size = own.total
        is_judged_anew |= self._total.detector.add(step, total_beyond_plan, is_after_pause)
        for followed in (self._total, *self._followed.values()):
            if followed.reported_bytes is None:
                followed.reported_bytes = followed.size.pinned_bytes
        self._bytes_by_device = own.bytes_by_device
        self._notes = tuple(_notes(own))
        return is_judged_anew

    def restart(self, step: int, reason: str) -> None:
        """Judge only samples after this event (see `LeakDetector`)."""
        for followed in (self._total, *self._followed.values()):
            followed.detector.restart(step, reason)

    def report(self, step: int) -> MemoryReport:
        """Return the sizes of the last sample, and the growth since the previous report or the first sample.

        A component that no longer exists is reported one last time.
        """
        steps = 0 if self._since_step is None else step - self._since_step
        self._since_step = step
        rows = [_row(name, each, steps) for name, each in self._followed.items()]
        total = _row(_TOTAL, self._total, steps)
        for followed in (self._total, *self._followed.values()):
            followed.reported_bytes = followed.size.pinned_bytes
        self._followed = {n: f for n, f in self._followed.items() if not f.is_gone}
        return MemoryReport(step, tuple(rows), total, self._notes)

    def detectors(self) -> dict[str, LeakDetector]:
        """Return the detector of each component by name, without the detector of the total."""
        return {name: followed.detector for name, followed in self._followed.items()}

    def device_kind(self, name: str) -> str:
        """Return `cuda` if any part of a component is on a CUDA device, else `cpu`."""
        devices = self._followed[name].size.devices
        return "cuda" if any(device.startswith("cuda") for device in devices) else "cpu"

    def sizes_mb(self) -> dict[str, float]:
        """Return the size of each component by device and name, e.g. `memory/cpu/replay`."""
        sizes = {name: each.size.pinned_bytes / _BYTES_PER_MB for name, each in self._followed.items()}
        return {f"memory/{self.device_kind(name)}/{name}": size for name, size in sizes.items()}

    def accounted_bytes(self, device: str) -> int:
        """Return the bytes of the run's components on `cpu` or `cuda` at the last sample."""
        held = self._bytes_by_device.items()
        return sum(nbytes for place, nbytes in held if place.partition(":")[0] == device)

    def _new(self, name: str) -> _Followed:
        return _Followed(LeakDetector(self._thresholds.get(name, self._tolerance_bytes)))


def require_free_name(name: str, taken: Container[str]) -> None:
    """Raise a `UsageError` if a component name is invalid or already used."""
    if not name or name != name.strip("/") or "//" in name:
        raise UsageError(f"A memory component's name must be words separated by `/`, got {name!r}.")
    if name in taken or name == _TOTAL:
        repair = f"Track it under another name, such as `my/{name}`."
        raise UsageError(f"The memory component `{name}` already exists. {repair}")


def _beyond_plan(census: Census, components: _Components) -> tuple[dict[str, int], int]:
    """Return by how many bytes each component, and the total, exceeds its plan or its parts' plans."""
    beyond: dict[str, int] = {}
    planned_parts: dict[str | None, int] = {}
    # Parts precede the component they belong to.
    for name in reversed(census.sizes):
        held, planned = census.sizes[name].pinned_bytes, components[name].planned_bytes
        allowed = min(held, planned_parts.get(name, 0) if planned is None else planned)
        beyond[name] = held - allowed
        parent = parent_component(name, census.sizes)
        planned_parts[parent] = planned_parts.get(parent, 0) + allowed
    return beyond, census.total.pinned_bytes - planned_parts.get(None, 0)


def _row(name: str, followed: _Followed, steps: int) -> ComponentRow:
    """Return the row of a component that grew over `steps` steps."""
    size, planned, test = followed.size, followed.planned_bytes, followed.detector.trend_test()
    growth_mb = (size.pinned_bytes - (followed.reported_bytes or 0)) / _BYTES_PER_MB
    return ComponentRow(
        name=name,
        size_mb=size.pinned_bytes / _BYTES_PER_MB,
        pinned_per_shown=size.pinned_bytes / size.logical_bytes if size.logical_bytes else math.nan,
        device="+".join(size.devices),
        growth_mb=growth_mb,
        growth_mb_per_1000_steps=1000 * growth_mb / steps if steps else 0.0,
        planned_mb=None if planned is None else planned / _BYTES_PER_MB,
        verdict=test.verdict,
        samples=test.samples,
        is_gone=followed.is_gone,
    )


def _notes(census: Census) -> list[str]:
    """Return a note for each reason why the sizes of a census are inexact."""
    notes = [] if census.is_complete else ["Not all objects were visited, so these sizes are too low."]
    if census.sampled:
        shown = ", ".join(census.sampled[:_MOST_SAMPLED_SHOWN])
        more = len(census.sampled) - _MOST_SAMPLED_SHOWN
        notes.append(f"Extrapolated from a sample: {shown}" + (f" and {more} more." if more > 0 else "."))
    return notes
