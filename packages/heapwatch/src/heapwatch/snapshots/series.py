"""Judge a series of snapshots: growth rate, allocation sites, and agreement with the run's logs."""

import os
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import UsageError
from ..leaks.verdict import TrendClass, TrendTest, classify_trend, pair_slopes
from .reader import Frame, SiteSizes, Stack, Summary

ALLOCATED_TAG = "train/memory/gpu_allocated_gb"
RESERVED_TAG = "train/memory/gpu_reserved_gb"
DEFAULT_TOLERANCE_BYTES = 1e6
NO_STACK = "(no stack recorded)"

_FILE_NAME = re.compile(r"snapshot_step_(0|[1-9][0-9]{0,17})\.pickle")
_LIBRARIES = ("torch/", "site-packages/", "dist-packages/", "<frozen ", "<string>", "importlib/")
# Match the functions and source files of the unwinder, the interpreter and PyTorch's dispatcher.
_FUNCTIONS = re.compile(r"unwind::|CapturedTraceback|with_cpp|^_start$|_libc_start|^_?Py[A-Z]\w*_")
_SOURCES = re.compile(r"(Modules|Objects|Python)/\w+\.c$|(ceval|abstract)\.h$|/boxing/|/Re(gister|dispatch)")
_ALLOCATOR = re.compile(r"Allocator|\bat::detail::_?empty_")
# Matches the arguments of C++ functions. Their types may include an allocator.
_ARGUMENTS = re.compile(r"\((?!anonymous namespace\)).*")
_GB = 1e9


@dataclass(frozen=True, slots=True)
class SiteChange:
    """A call-site in two snapshots. Its blocks are matched by size, not by address."""

    stack: Stack
    blocks_before: int
    blocks_after: int
    bytes_before: int
    bytes_after: int
    new_blocks: int
    """Blocks in the second snapshot without a counterpart of the same size in the first."""
    freed_blocks: int
    """Blocks in the first snapshot without a counterpart of the same size in the second."""

    @property
    def bytes_more(self) -> int:
        """Growth in bytes."""
        return self.bytes_after - self.bytes_before

    @property
    def change(self) -> str:
        """`new`, `freed`, `grown`, `shrunk`, or `same` (equal total in blocks of other sizes)."""
        if not self.blocks_before:
            return "new"
        if not self.blocks_after:
            return "freed"
        if not self.bytes_more:
            return "same"
        return "grown" if self.bytes_more > 0 else "shrunk"


@dataclass(frozen=True, slots=True)
class Growth:
    """The verdict on a series of snapshots."""

    summaries: tuple[Summary, ...]
    """One summary per snapshot, by increasing step."""
    active: TrendTest
    reserved: TrendTest
    verdict: TrendClass
    """The verdict on active bytes, or `retention` if these are flat while reserved bytes rise."""
    bytes_per_step: float
    """Median slope of active bytes between any two snapshots (Theil-Sen), or 0 for one snapshot."""
    blocks_per_step: float
    sites: tuple[SiteChange, ...]
    """Changes from the first snapshot to the last, largest growth first."""
    holders: tuple[SiteChange, ...]
    """All memory in the last snapshot by call-site, largest first."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """A logged scalar compared with the same quantity in the snapshots."""

    tag: str
    pearson_r: float | None
    """`None` for fewer than three snapshots, or if one of the two is constant."""
    largest_difference_gb: float
    largest_distance_steps: int
    """Largest distance from a snapshot to its nearest logged step."""


def find_snapshots(folder: Path) -> dict[int, Path]:
    """Return the files snapshot_step_<N>.pickle in a folder, by increasing N.

    Raises:
        UsageError: If the folder cannot be read or contains no such file.
    """
    try:
        matches = [(_FILE_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    except OSError as error:
        raise UsageError(f"--snapshots-dir {folder} cannot be read: {error.strerror}.") from error
    found = {int(match[1]): path for match, path in matches if match}
    if not found:
        raise UsageError(
            f"--snapshots-dir {folder} contains no snapshot_step_<N>.pickle. On CUDA a run saves them in its "
            "memory_snapshots/ with memory.snapshot_interval=1000."
        )
    return dict(sorted(found.items()))


def measure_growth(summaries: Sequence[Summary], tolerance_bytes: float = DEFAULT_TOLERANCE_BYTES) -> Growth:
    """Judge a series of at least one snapshot, by increasing step."""
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
    """Return the median slope between any two points, or 0 for one point."""
    if len(steps) == 1:
        return 0.0
    return float(np.median(pair_slopes(np.asarray(steps, np.float64), np.asarray(values, np.float64))))


def compare(before: SiteSizes, after: SiteSizes) -> list[SiteChange]:
    """Return the call-sites with changed active blocks, largest growth first.

    `torch.cuda._memory_viz.compare` compares whole segments by address and misses changes inside them.
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
    """Return the line that allocated memory and its two callers.

    The user's own Python code takes precedence over libraries. Without Python frames, the first frame outside
    the allocator is used.
    """
    python = [frame for frame in stack if frame.filename.endswith(".py")]
    own = [frame for frame in python if not any(part in frame.filename for part in _LIBRARIES)]
    shown = (own or python or _outside_allocator(stack))[:3]
    lines = (f"{frame.filename.rsplit('/', 1)[-1]}:{frame.line} {frame.name}" for frame in shown)
    return " < ".join(lines) or NO_STACK


def frame_lines(stack: Stack) -> list[str]:
    """Return the relevant frames of a stack, innermost first, with full paths."""
    lines = [f"{frame.filename}:{frame.line} {frame.name}" for frame in _worth_showing(stack)]
    return lines or [NO_STACK]


def _worth_showing(stack: Stack) -> list[Frame]:
    """Return the frames outside the unwinder and the interpreter, or all frames if there are no others."""
    return [f for f in stack if not (_FUNCTIONS.search(f.name) or _SOURCES.search(f.filename))] or list(stack)


def _outside_allocator(stack: Stack) -> list[Frame]:
    """Return the frames from the first one outside the allocator on, or all frames."""
    shown = _worth_showing(stack)
    names = (f"{frame.filename} {_ARGUMENTS.sub('', frame.name)}" for frame in shown)
    first = next((place for place, name in enumerate(names) if not _ALLOCATOR.search(name)), 0)
    return shown[first:]


def correlate(summaries: Sequence[Summary], events_dir: Path) -> list[Correlation]:
    """Compare the snapshots with the logged scalars of allocated and reserved memory, if available.

    Raises:
        UsageError: If the folder has no TensorBoard events, or the events contain neither scalar.
    """
    # Imported here, because tensorboard's readers need 1 s to import and are rarely used.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not os.access(events_dir, os.R_OK | os.X_OK):
        raise UsageError(f"--events-dir {events_dir} is not a readable folder.")
    # A size of 0 keeps every point.
    events = EventAccumulator(str(events_dir), size_guidance={"scalars": 0}).Reload()
    held = {
        ALLOCATED_TAG: {summary.step: summary.allocated_bytes / _GB for summary in summaries},
        RESERVED_TAG: {summary.step: summary.reserved_bytes / _GB for summary in summaries},
    }
    tags = [tag for tag in held if tag in events.Tags()["scalars"]]
    if not tags:
        raise UsageError(
            f"--events-dir {events_dir} has no TensorBoard events with {ALLOCATED_TAG} or {RESERVED_TAG}. "
            "A run on CUDA writes them to its tensorboard/."
        )
    # If a step was logged twice, the last value counts.
    logged = {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in tags}
    return [correlation(tag, held[tag], logged[tag]) for tag in tags]


def correlation(tag: str, held_gb: Mapping[int, float], logged_gb: Mapping[int, float]) -> Correlation:
    """Match each snapshot to the nearest logged step (the earlier of two). Both arguments map steps to GB."""
    logged_steps = sorted(logged_gb)
    nearest = [min(logged_steps, key=lambda other, step=step: abs(other - step)) for step in held_gb]
    held, logged = list(held_gb.values()), [logged_gb[step] for step in nearest]
    r, difference, distance = None, np.subtract(held, logged), np.subtract(list(held_gb), nearest)
    # One of the two series is constant.
    with suppress(statistics.StatisticsError):
        # Two points always lie on a line.
        r = statistics.correlation(held, logged) if len(held) > 2 else None
    return Correlation(tag, r, float(np.abs(difference).max()), int(np.abs(distance).max()))
