"""Judge a series of snapshots: how fast memory grows, where it is allocated, and what the run logged."""

import os
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch.cuda import _memory_viz

from ..errors import UsageError
from ..leaks.verdict import TrendClass, TrendTest, classify_trend, pair_slopes
from .reader import Frame, SiteSizes, Stack, Summary

ALLOCATED_TAG = "train/memory/gpu_allocated_gb"
RESERVED_TAG = "train/memory/gpu_reserved_gb"
DEFAULT_TOLERANCE_BYTES = 1e6
NO_STACK = "(no stack recorded)"

_FILE_NAME = re.compile(r"snapshot_step_(0|[1-9][0-9]{0,17})\.pickle")
_LIBRARIES = ("torch/", "site-packages/", "dist-packages/", "<frozen ", "<string>", "importlib/")
_ALLOCATOR = re.compile(r"Allocator|\bat::detail::_?empty_")
_ARGUMENTS = re.compile(r"\((?!anonymous namespace\)).*")  # of C++, which may be of an allocator's type
_CALLERS = 2
_GB = 1e9


@dataclass(frozen=True, slots=True)
class SiteChange:
    """A call-site in two snapshots; its blocks are told apart by size, not by address."""

    stack: Stack
    blocks_before: int
    blocks_after: int
    bytes_before: int
    bytes_after: int
    new_blocks: int
    """Blocks after without one of the same size before."""
    freed_blocks: int
    """Blocks before without one of the same size after."""

    @property
    def bytes_more(self) -> int:
        """Growth in bytes."""
        return self.bytes_after - self.bytes_before

    @property
    def change(self) -> str:
        """`new`, `freed`, `grown`, `shrunk`, or `same`: as many bytes in blocks of other sizes."""
        if not self.blocks_before:
            return "new"
        if not self.blocks_after:
            return "freed"
        if not self.bytes_more:
            return "same"
        return "grown" if self.bytes_more > 0 else "shrunk"


@dataclass(frozen=True, slots=True)
class Growth:
    """A series of snapshots, judged."""

    summaries: tuple[Summary, ...]
    """One of each snapshot, by rising step."""
    active: TrendTest
    reserved: TrendTest
    verdict: TrendClass
    """That of active bytes; `retention` where these are flat while reserved bytes rise."""
    bytes_per_step: float
    """Median slope of active bytes between any two snapshots (Theil-Sen); 0 for one snapshot."""
    blocks_per_step: float
    sites: tuple[SiteChange, ...]
    """From the first snapshot to the last, what grew most first."""
    holders: tuple[SiteChange, ...]
    """All that the last snapshot holds, against nothing, the largest first."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """A logged scalar against the same quantity of the snapshots."""

    tag: str
    pearson_r: float | None
    """None for fewer than three snapshots, or if one of the two does not vary."""
    largest_difference_gb: float
    largest_distance_steps: int
    """Largest distance from a snapshot to the logged step it is joined to."""


def find_snapshots(folder: Path) -> dict[int, Path]:
    """Return the files snapshot_step_<N>.pickle of a folder by rising N.

    Raises:
        UsageError: If the folder cannot be read or has no such file.
    """
    try:
        matches = [(_FILE_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    except OSError as error:
        raise UsageError(f"--snapshots-dir {folder} cannot be read: {error.strerror}.") from error
    found = {int(match[1]): path for match, path in matches if match}
    if not found:
        raise UsageError(
            f"--snapshots-dir {folder} holds no snapshot_step_<N>.pickle. On CUDA a run saves them, with "
            "memory.snapshot_interval=1000, in its memory_snapshots/."
        )
    return dict(sorted(found.items()))


def measure_growth(summaries: Sequence[Summary], tolerance_bytes: float = DEFAULT_TOLERANCE_BYTES) -> Growth:
    """Judge a series of at least one snapshot, by rising step."""
    steps = [summary.step for summary in summaries]
    active_bytes = [summary.active_bytes for summary in summaries]
    active = classify_trend(active_bytes, tolerance_bytes, steps)
    reserved = classify_trend([summary.reserved_bytes for summary in summaries], tolerance_bytes, steps)
    is_retention = active.verdict is TrendClass.flat and reserved.verdict is TrendClass.growing
    verdict = TrendClass.retention if is_retention else active.verdict
    slopes = _slope(steps, active_bytes), _slope(steps, [summary.active_blocks for summary in summaries])
    first, last = summaries[0].sites, summaries[-1].sites
    sites, holders = tuple(compare(first, last)), tuple(compare({}, last))
    return Growth(tuple(summaries), active, reserved, verdict, *slopes, sites, holders)


def _slope(steps: Sequence[int], values: Sequence[int]) -> float:
    """Return the median slope between any two points; 0 for one point."""
    if len(steps) == 1:
        return 0.0
    return float(np.median(pair_slopes(np.asarray(steps, np.float64), np.asarray(values, np.float64))))


def compare(before: SiteSizes, after: SiteSizes) -> list[SiteChange]:
    """Return the call-sites whose active blocks changed, those that grew most first.

    `torch.cuda._memory_viz.compare` compares whole segments by address: what changes inside does not show.
    """
    changes = []
    for stack in {**before, **after}:
        old, new = Counter(before.get(stack, {})), Counter(after.get(stack, {}))
        if old != new:
            change = SiteChange(
                stack,
                blocks_before=old.total(),
                blocks_after=new.total(),
                bytes_before=sum(size * count for size, count in old.items()),
                bytes_after=sum(size * count for size, count in new.items()),
                new_blocks=(new - old).total(),
                freed_blocks=(old - new).total(),
            )
            changes.append(change)
    return sorted(changes, key=lambda change: change.bytes_more, reverse=True)


def site_label(stack: Stack) -> str:
    """Return the line that asked for memory and its two callers.

    The user's own Python comes before that of libraries. Without Python, it is the first frame outside the
    allocator.
    """
    python = [frame for frame in stack if frame.filename.endswith(".py")]
    own = [frame for frame in python if not any(part in frame.filename for part in _LIBRARIES)]
    shown = (own or python or _outside_allocator(stack))[: 1 + _CALLERS]
    lines = (f"{frame.filename.rsplit('/', 1)[-1]}:{frame.line} {frame.name}" for frame in shown)
    return " < ".join(lines) or NO_STACK


def frame_lines(stack: Stack) -> list[str]:
    """Return every frame of a stack that is worth a line, innermost first, with its whole path."""
    lines = [f"{frame.filename}:{frame.line} {frame.name}" for frame in _worth_showing(stack)]
    return lines or [NO_STACK]


def _worth_showing(stack: Stack) -> list[Frame]:
    """Return the frames outside the unwinder and the interpreter, or all if there are none."""
    return [f for f in stack if _memory_viz._frame_filter(f.name, f.filename)] or list(stack)


def _outside_allocator(stack: Stack) -> list[Frame]:
    """Return the frames from the first one on that is not the allocator's, or all if there is none."""
    shown = _worth_showing(stack)
    names = (f"{frame.filename} {_ARGUMENTS.sub('', frame.name)}" for frame in shown)
    first = next((place for place, name in enumerate(names) if not _ALLOCATOR.search(name)), 0)
    return shown[first:]


def correlate(summaries: Sequence[Summary], events_dir: Path) -> list[Correlation]:
    """Join the snapshots to the scalars of allocated and of reserved memory, where these were logged.

    Raises:
        UsageError: If the folder holds no TensorBoard events, or none of the two scalars.
    """
    # Here, not above: tensorboard's readers take 1 s to import, and most uses need none.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not os.access(events_dir, os.R_OK | os.X_OK):
        raise UsageError(f"--events-dir {events_dir} is no folder that can be read.")
    events = EventAccumulator(str(events_dir), size_guidance={"scalars": 0}).Reload()  # 0: every point
    held = {
        ALLOCATED_TAG: {summary.step: summary.allocated_bytes / _GB for summary in summaries},
        RESERVED_TAG: {summary.step: summary.reserved_bytes / _GB for summary in summaries},
    }
    tags = [tag for tag in held if tag in events.Tags()["scalars"]]
    if not tags:
        raise UsageError(
            f"--events-dir {events_dir} has no TensorBoard events with {ALLOCATED_TAG} or {RESERVED_TAG}; "
            "a run on CUDA writes them to its tensorboard/."
        )
    # Of a step that was logged twice the last value counts.
    logged = {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in tags}
    return [correlation(tag, held[tag], logged[tag]) for tag in tags]


def correlation(tag: str, held_gb: Mapping[int, float], logged_gb: Mapping[int, float]) -> Correlation:
    """Join each value held to the nearest logged step, the earlier of two; both are GB by step."""
    logged_steps = sorted(logged_gb)
    nearest = [min(logged_steps, key=lambda other, step=step: abs(other - step)) for step in held_gb]
    held, logged = list(held_gb.values()), [logged_gb[step] for step in nearest]
    r, difference, distance = None, np.subtract(held, logged), np.subtract(list(held_gb), nearest)
    with suppress(statistics.StatisticsError):  # one of the two is constant
        r = statistics.correlation(held, logged) if len(held) > 2 else None  # two points always lie on a line
    return Correlation(tag, r, float(np.abs(difference).max()), int(np.abs(distance).max()))
