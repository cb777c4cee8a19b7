"""Define the counters that must not grow, and detect growth in a series of samples."""

import bisect
import gc
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .verdict import Series, TrendClass, TrendTest, classify_trend, pair_slopes, saturates

# A detector keeps this many samples and drops older ones.
WINDOW = 96
# Resident memory is a backstop. It changes in pages and includes memory cached by the allocator.
_RESIDENT_TOLERANCES = 5
_LEAST_RESIDENT_BYTES = 8e6
# An alarm requires this many consecutive trend tests with growth.
_ALARM_AFTER = 2
# Number of samples between tests: the length of a block. Eight blocks are two thirds of the window.
TEST_EVERY = WINDOW // 12
# Number of judged samples in a full window. The first third of the window is discarded.
_JUDGED = WINDOW * 2 // 3
# Memory must rise over the last phases of updates, for at least one of these numbers of phases.
_PHASES = (4, 8, 16, 32, 64)
# The phases are grouped into this many blocks, each represented by its median.
_BLOCKS = 8
# The required share of rising pairs of blocks is the same as in a window.
_RISING_PAIRS = 22 / 28
# After an event, samples are skipped for this fraction of the steps since the start.
_SETTLE = 0.2
# A rise counts as garbage if a collection frees at least this fraction of it.
_COLLECTABLE = 0.5
_SECONDS_PER_HOUR = 3600
_MB = 1e6
BEYOND_COMPONENTS = ", not accounted for"
"""Suffix of a counter's name if the memory of components is subtracted from the counter."""


class LeakDetector:
    """Tests a rolling window of a series and raises an alarm after two consecutive tests with growth.

    A test that is repeated during a warm-up always raises an alarm eventually. The window is therefore reset
    by each event after which more memory is normal (`restart`). Once the window is half full, it is tested
    after each new block of 8 samples out of 96. Two consecutive tests thus use different samples, and the
    first alarm comes at least 56 samples after the last event. Any saturating curve looks straight in a short
    window, so there is no alarm while growth slows down over the history: all samples since the last event,
    thinned to the window's length.

    After an event at step s of a run that started at step b, samples up to s + (s - b) / 5 are skipped,
    because the effects of an event need time to settle. No samples are recorded until every event in
    `wait_for` (reasons passed to `restart`) has occurred. The detector keeps no reference to any object.

    Updates may pause for a rollout, an evaluation or the start of an epoch, and a pause may allocate memory
    that the next updates free. If the judged samples include a pause, growth counts only if the minima of the
    last update phases, at least four, rise as well.
    """

    def __init__(self, tolerance_bytes: float, wait_for: Iterable[str] = ()) -> None:
        self.tolerance_bytes = tolerance_bytes
        # Rows of step and value.
        self._window, self._history = np.zeros((WINDOW, 2)), np.zeros((WINDOW, 2))
        # Number of samples between two entries of the history.
        self._spacing = 1
        # Samples since the last event. The count may exceed the window.
        self._count = 0
        self._tested_at = 0
        self._growing_in_a_row = 0
        self._first_step: int | None = None
        self._steady_since = -1
        self._awaited = set(wait_for)
        # The lowest value in each phase of updates.
        self._floors = deque[float](maxlen=_PHASES[-1])
        # Number of samples since the last pause.
        self._since_pause = _JUDGED

    def restart(self, step: int, reason: str) -> None:
        """Drop all samples, because more memory is normal after an event at `step`."""
        self._first_step = step if self._first_step is None else self._first_step
        self._awaited.discard(reason)
        self._steady_since = step + math.ceil(_SETTLE * (step - self._first_step))
        self._count = self._tested_at = self._growing_in_a_row = 0
        self._spacing = 1
        self._floors.clear()
        self._since_pause = _JUDGED

    def add(self, step: int, value_bytes: float, is_after_pause: bool = False) -> bool:
        """Add a sample at a later step and a fixed phase, and return whether it triggered a test.

        `is_after_pause` marks the first sample after a pause of the updates.
        """
        self._first_step = step if self._first_step is None else self._first_step
        if self._awaited or step <= self._steady_since:
            return False
        self._since_pause = 0 if is_after_pause else self._since_pause + 1
        if is_after_pause or not self._floors:
            self._floors.append(value_bytes)
        else:
            self._floors[-1] = min(self._floors[-1], value_bytes)
        self._window[self._count % WINDOW] = step, value_bytes
        # The history is full, so every second sample is dropped.
        if self._count >= WINDOW * self._spacing:
            self._history[: WINDOW // 2] = self._history[::2].copy()
            self._spacing *= 2
        if self._count % self._spacing == 0:
            self._history[self._count // self._spacing] = step, value_bytes
        self._count += 1
        if self._count < WINDOW // 2 or self._count - self._tested_at < TEST_EVERY:
            return False
        self._tested_at = self._count
        grows = self.trend_test().verdict is TrendClass.growing
        self._growing_in_a_row = self._growing_in_a_row + 1 if grows else 0
        return True

    def _rises_by_phase(self) -> bool:
        """Return whether the judged samples are in one phase of updates, or rise from phase to phase."""
        if self._since_pause >= _JUDGED:
            return True
        for phases in _PHASES[: bisect.bisect(_PHASES, len(self._floors))]:
            blocks = min(phases, _BLOCKS)
            floors = np.median(np.array(self._floors)[-phases:].reshape(blocks, -1), axis=1)
            rising = np.sign(pair_slopes(np.arange(float(blocks)), floors)).mean()
            if rising >= _RISING_PAIRS and floors[-1] - floors[0] > self.tolerance_bytes:
                return True
        return False

    def trend_test(self) -> TrendTest:
        """Test the current window."""
        return classify_trend(self.values(), self.tolerance_bytes, self.steps())

    def trend_per_step(self) -> TrendTest:
        """Test the current window of at least two samples, with the slope per step instead of per sample."""
        test, steps = self.trend_test(), self.steps()
        slope = test.slope_bytes_per_sample * (len(steps) - 1) / (steps[-1] - steps[0])
        return replace(test, slope_bytes_per_sample=slope)

    @property
    def is_suspect(self) -> bool:
        """Whether the last test returned `growing`."""
        return self._growing_in_a_row > 0

    @property
    def grows(self) -> bool:
        """Whether the last two tests returned `growing` and memory rises with each phase of updates."""
        return self._growing_in_a_row >= _ALARM_AFTER and self._rises_by_phase()

    @property
    def alarm(self) -> bool:
        """Whether the series grows and its growth has not slowed down over its history.

        An alarm persists until growth ends.
        """
        history = self._history[: -(-self._count // self._spacing)]
        return self.grows and not saturates(history[:, 1], history[:, 0])

    @property
    def growing_samples(self) -> int:
        """Number of samples of uninterrupted growth up to now."""
        judged = min(self._count, WINDOW) * 2 // 3
        return judged + TEST_EVERY * (self._growing_in_a_row - 1) if self._growing_in_a_row else 0

    def values(self) -> NDArray[np.float64]:
        """Return a copy of the values in the window, in bytes, oldest first."""
        return self._in_order()[:, 1]

    def steps(self) -> NDArray[np.float64]:
        """Return the steps in the window, oldest first."""
        return self._in_order()[:, 0]

    @property
    def judged_steps(self) -> float:
        """Number of steps from the first to the last judged sample of the window."""
        steps = self.steps()
        return float(steps[-1] - steps[len(steps) // 3]) if len(steps) else 0.0

    def _in_order(self) -> NDArray[np.float64]:
        if self._count <= WINDOW:
            return self._window[: self._count].copy()
        return np.roll(self._window, -(self._count % WINDOW), axis=0)


def confirm(rise_bytes: float, read: Callable[[], int]) -> TrendClass:
    """Classify a rise as `growing`, or as `collectable` if a garbage collection frees half of it.

    Python triggers collections based on the number of objects, not their size in bytes, so a few large
    tensors in reference cycles can accumulate.
    """
    before = read()
    gc.collect()
    freed = before - read()
    return TrendClass.collectable if freed >= _COLLECTABLE * rise_bytes else TrendClass.growing


def classify_resident(
    in_use: TrendTest, resident: Series, tolerance_bytes: float, steps: Series = ()
) -> TrendTest:
    """Test resident memory, and distinguish allocator retention from a leak of live objects.

    If resident memory rises by more than `resident_tolerance` while the bytes in use stay flat, the C
    allocator caches freed memory: `allocator retention`, not a leak. `resident` should be private memory
    (`rss_anon`), because the size of the page cache varies. `tolerance_bytes` is the tolerance for the bytes
    in use.
    """
    found = classify_trend(resident, resident_tolerance(tolerance_bytes), steps)
    rises = found.verdict in (TrendClass.growing, TrendClass.plateauing)
    is_kept = rises and in_use.verdict is TrendClass.flat
    return replace(found, verdict=TrendClass.retention) if is_kept else found


def resident_tolerance(tolerance_bytes: float) -> float:
    """Return the growth of resident memory, in bytes, that still counts as flat."""
    return max(_RESIDENT_TOLERANCES * tolerance_bytes, _LEAST_RESIDENT_BYTES)


def hours_to_limit(test: TrendTest, seconds_per_sample: float, headroom_bytes: float) -> float | None:
    """Return the hours until `growing` or `allocator retention` uses up the free memory, else `None`.

    >>> growth = classify_trend([1e6 * sample for sample in range(48)], tolerance_bytes=1e6)
    >>> hours_to_limit(growth, seconds_per_sample=36, headroom_bytes=1e9)
    10.0
    """
    if test.verdict not in (TrendClass.growing, TrendClass.retention) or test.slope_bytes_per_sample <= 0:
        return None
    return max(0.0, headroom_bytes) / test.slope_bytes_per_sample * seconds_per_sample / _SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class WatchedCounter:
    """A counter that the guard watches and the certificate checks."""

    name: str
    tag: str
    """Tag of the counter in a log line."""
    tolerance: float
    """Growth over the judged samples that still counts as flat, in bytes or counts."""
    unit: str = "MB"
    scale: float = _MB
    """Bytes or counts per logged unit."""
    planned_tag: str | None = None
    """Tag of the planned amount in a log line. The planned amount is subtracted."""
    kept_from: str | None = None
    """The corresponding counter of live objects. While live objects are flat, the allocator causes growth."""
    source: str | None = None
    """Source to report for growth without a Python holder, or `None` to search the heap for the holder."""

    @property
    def on_gpu(self) -> bool:
        """Whether the counter measures GPU memory."""
        return self.tag.startswith("debug/gpu/")

    def read(self, tags: Mapping[str, float]) -> float | None:
        """Return the value in bytes or counts minus the planned amount, or `None` if the tag is missing."""
        if self.tag not in tags:
            return None
        planned = 0.0 if self.planned_tag is None else tags[self.planned_tag]
        return (tags[self.tag] - planned) * self.scale


def watched_counters(threshold_mb: float, on_cuda: bool) -> list[WatchedCounter]:
    """Return the counters that must not grow. `threshold_mb` is in MB of 1e6 bytes."""
    threshold = threshold_mb * _MB
    kept = "freed pages that the C allocator keeps"
    found = _held_and_kept(
        "cpu", threshold, "host memory in use", "in_use_mb", "resident private memory", "rss_anon_mb", kept
    )
    for name, tag, tolerance, unit, source in (
        ("shared memory", "rss_shmem_mb", threshold, "MB", "blocks that are not closed"),
        ("open files", "open_files_count", 4, "files", "descriptors that are not closed"),
        ("child processes", "children_count", 1, "processes", "workers that are not stopped"),
        ("threads", "threads_count", 4, "threads", "threads that do not end"),
    ):
        scale, what = _MB if unit == "MB" else 1, f"{name}: {source}"
        found.append(WatchedCounter(name, f"debug/cpu/{tag}", tolerance, unit, scale, source=what))
    if on_cuda:
        kept = "freed segments that PyTorch's allocator keeps"
        found += _held_and_kept(
            "cuda", threshold, "GPU memory in use", "alloc_mb", "GPU memory reserved", "reserved_mb", kept
        )
    return found


def _held_and_kept(
    device: str, tolerance: float, held: str, held_tag: str, kept: str, kept_tag: str, source: str
) -> list[WatchedCounter]:
    """Return a device's counters of live objects and of the memory cached by its allocator."""
    group, planned = "gpu" if device == "cuda" else device, accounted_tag(device)
    held, kept = f"{held}{BEYOND_COMPONENTS}", f"{kept}{BEYOND_COMPONENTS}"
    tags = f"debug/{group}/{held_tag}", f"debug/{group}/{kept_tag}"
    return [
        WatchedCounter(held, tags[0], tolerance, planned_tag=planned),
        WatchedCounter(
            kept, tags[1], resident_tolerance(tolerance), planned_tag=planned, kept_from=held, source=source
        ),
    ]


def accounted_tag(device: str) -> str:
    """Return the log tag of the MB that the run's components use on `cpu` or `cuda`."""
    return f"memory/{device}_accounted_mb"
