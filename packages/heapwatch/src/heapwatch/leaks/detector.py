"""Say which counters must not grow, and raise alarms about series that do."""

import bisect
import gc
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .verdict import Series, TrendClass, TrendTest, classify_trend, pair_slopes, saturates

WINDOW = 96  # samples that a detector keeps; older ones are forgotten
_RESIDENT_TOLERANCES = 5  # resident memory is a backstop: it moves by pages, and by what the allocator keeps
_LEAST_RESIDENT_BYTES = 8e6
_ALARM_AFTER = 2  # trend tests in a row that it grows
TEST_EVERY = WINDOW // 12  # samples: one test for each new block, of which 8 are two thirds of the window
_JUDGED = WINDOW * 2 // 3  # samples of a full window: the first third is discarded
_PHASES = (4, 8, 16, 32, 64)  # numbers of phases of updates, over one of which memory must rise
_BLOCKS = 8  # of phases, each as its median
_RISING_PAIRS = 22 / 28  # of the phases, as of a window's blocks
_SETTLE = 0.2  # part of the way to an event that is passed over after it
_COLLECTABLE = 0.5  # part of the rise that a collection frees, from which on it was garbage
_SECONDS_PER_HOUR = 3600
_MB = 1e6
BEYOND_COMPONENTS = ", not accounted for"
"""Ends the name of a counter from which what components hold is subtracted."""


class LeakDetector:
    """Tests a rolling window of one series and raises an alarm after two tests in a row that it grows.

    A test that is repeated during a warm-up alarms whatever the test. So the window begins anew at each event
    after which more memory is normal (`restart`). From a half full window on, it is tested after each new
    twelfth, 8 samples of 96: two tests in a row do not rest on the same samples, and the first alarm comes 56
    samples after the last event at the earliest. Any saturating curve looks straight through a short window,
    so there is no alarm while the history, all samples since the last event thinned to a window's length,
    grows less and less.

    After an event at step s of a run begun at step b, samples up to s + (s - b) / 5 are passed over: what an
    event starts takes time to come to rest. None are taken before all events of `wait_for`, which are reasons
    given to `restart`, have happened. It keeps nothing that it measures.

    Updates may pause, for a rollout, an evaluation or an epoch's start, and a pause may fill what the next
    updates empty. While a pause is among the judged samples, growth counts only if the lowest values of the
    last phases of updates, at least four, rise as well.
    """

    def __init__(self, tolerance_bytes: float, wait_for: Iterable[str] = ()) -> None:
        self.tolerance_bytes = tolerance_bytes
        # Rows of step and value.
        self._window, self._history = np.zeros((WINDOW, 2)), np.zeros((WINDOW, 2))
        self._spacing = 1  # samples between two of the history
        self._count = 0  # since the last event; may exceed the window
        self._tested_at = 0
        self._growing_in_a_row = 0
        self._first_step: int | None = None
        self._steady_since = -1
        self._awaited = set(wait_for)
        self._floors = deque[float](maxlen=_PHASES[-1])  # the lowest value of each phase of updates
        self._since_pause = _JUDGED  # samples

    def restart(self, step: int, reason: str) -> None:
        """Forget all samples, because of an event at `step` after which more memory is normal."""
        self._first_step = step if self._first_step is None else self._first_step
        self._awaited.discard(reason)
        self._steady_since = step + math.ceil(_SETTLE * (step - self._first_step))
        self._count = self._tested_at = self._growing_in_a_row = 0
        self._spacing = 1
        self._floors.clear()
        self._since_pause = _JUDGED

    def add(self, step: int, value_bytes: float, is_after_pause: bool = False) -> bool:
        """Add a sample at a later step and a fixed phase, and return whether it led to a new test.

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
        if self._count >= WINDOW * self._spacing:  # the history is full: it is thinned
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
        """Return whether the judged samples are one phase of updates, or several that rise."""
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
        """Return the test of the window as it is now."""
        return classify_trend(self.values(), self.tolerance_bytes, self.steps())

    @property
    def is_suspect(self) -> bool:
        """Whether the last test said `growing`."""
        return self._growing_in_a_row > 0

    @property
    def grows(self) -> bool:
        """Whether the last two tests said `growing`, and each phase of updates did."""
        return self._growing_in_a_row >= _ALARM_AFTER and self._rises_by_phase()

    @property
    def alarm(self) -> bool:
        """Whether it grows, and its history does not slow down; it stays until that ends, or `restart`."""
        history = self._history[: len(self.history())]
        return self.grows and not saturates(history[:, 1], history[:, 0])

    @property
    def growing_samples(self) -> int:
        """Samples over which it has grown without a break, up to now."""
        judged = min(self._count, WINDOW) * 2 // 3
        return judged + TEST_EVERY * (self._growing_in_a_row - 1) if self._growing_in_a_row else 0

    def values(self) -> NDArray[np.float64]:
        """Return a copy of the window, in bytes, oldest first."""
        return self._in_order()[:, 1]

    def steps(self) -> NDArray[np.float64]:
        """Return the steps of the window, oldest first."""
        return self._in_order()[:, 0]

    def history(self) -> NDArray[np.float64]:
        """Return all samples since the last event, in bytes, oldest first, thinned to a window's length."""
        return self._history[: -(-self._count // self._spacing), 1].copy()

    def _in_order(self) -> NDArray[np.float64]:
        if self._count <= WINDOW:
            return self._window[: self._count].copy()
        return np.roll(self._window, -(self._count % WINDOW), axis=0)


def confirm(rise_bytes: float, read: Callable[[], int]) -> TrendClass:
    """Return whether the rise of a counter is growth, or `collectable`: a collection frees half of it.

    Python collects by the number of objects, not by their bytes: a few large tensors in cycles can pile up.
    """
    before = read()
    gc.collect()
    freed = before - read()
    return TrendClass.collectable if freed >= _COLLECTABLE * rise_bytes else TrendClass.growing


def classify_resident(
    in_use: TrendTest, resident: Series, tolerance_bytes: float, steps: Series = ()
) -> TrendTest:
    """Return the test of resident memory, distinguished from a leak by what live objects hold.

    Where it rises by more than `resident_tolerance` while the bytes in use stay flat, the C allocator keeps
    what was freed: `allocator retention`, no leak. `resident` is best that of private memory alone
    (`rss_anon`): the page cache comes and goes. The tolerance is that of the bytes in use.
    """
    found = classify_trend(resident, resident_tolerance(tolerance_bytes), steps)
    rises = found.verdict in (TrendClass.growing, TrendClass.plateauing)
    is_kept = rises and in_use.verdict is TrendClass.flat
    return replace(found, verdict=TrendClass.retention) if is_kept else found


def resident_tolerance(tolerance_bytes: float) -> float:
    """Return the growth of resident memory, in bytes, up to which it counts as flat."""
    return max(_RESIDENT_TOLERANCES * tolerance_bytes, _LEAST_RESIDENT_BYTES)


def hours_to_limit(test: TrendTest, seconds_per_sample: float, headroom_bytes: float) -> float | None:
    """Return the hours until `growing` or `allocator retention` has used up what is left; else None.

    >>> growth = classify_trend([1e6 * sample for sample in range(48)], tolerance_bytes=1e6)
    >>> hours_to_limit(growth, seconds_per_sample=36, headroom_bytes=1e9)
    10.0
    """
    if test.verdict not in (TrendClass.growing, TrendClass.retention) or test.slope_bytes_per_sample <= 0:
        return None
    return max(0.0, headroom_bytes) / test.slope_bytes_per_sample * seconds_per_sample / _SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class WatchedCounter:
    """A counter that the guard watches and the certificate judges."""

    name: str
    tag: str
    """Where a log line has it."""
    tolerance: float
    """Growth over the judged samples up to which it counts as flat, in bytes or counts."""
    unit: str = "MB"
    scale: float = _MB
    """Bytes, or counts, in one unit."""
    planned_tag: str | None = None
    """Where a log line has what is planned of it, which is subtracted."""
    kept_from: str | None = None
    """The counter of what live objects hold of this; while that is flat, growth is the allocator's."""
    source: str | None = None
    """What to name where no path of Python leads to it; None to search for what holds it."""

    @property
    def source_is_certain(self) -> bool:
        """Whether steady growth is a leak at once: nothing fills up with files, threads, shared memory."""
        return self.source is not None and self.kept_from is None

    @property
    def on_gpu(self) -> bool:
        """Whether it counts memory of the GPU."""
        return self.tag.startswith("debug/gpu/")

    def read(self, tags: Mapping[str, float]) -> float | None:
        """Return its value in bytes or counts, less what is planned; None where the system does not count."""
        if self.tag not in tags:
            return None
        planned = 0.0 if self.planned_tag is None else tags[self.planned_tag]
        return (tags[self.tag] - planned) * self.scale


def watched_counters(threshold_mb: float, on_cuda: bool) -> list[WatchedCounter]:
    """Return what must not grow; `threshold_mb` is in MB of 1e6 bytes."""
    threshold = threshold_mb * _MB
    kept = "pages that the C allocator keeps of what was freed"
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
        kept = "segments that PyTorch's allocator keeps of what was freed"
        found += _held_and_kept(
            "cuda", threshold, "GPU memory in use", "alloc_mb", "GPU memory reserved", "reserved_mb", kept
        )
    return found


def _held_and_kept(
    device: str, tolerance: float, held: str, held_tag: str, kept: str, kept_tag: str, source: str
) -> list[WatchedCounter]:
    """Return the counters of what live objects hold on a device, and of what its allocator keeps for them."""
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
    """Return where a log line has the bytes, in MB, that the run's components hold on `cpu` or `cuda`."""
    return f"memory/{device}_accounted_mb"
