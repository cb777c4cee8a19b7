"""Sample the memory of a program while it runs, judge it, and name what holds growth."""

import logging
import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from ..errors import UsageError
from ..leaks.detector import BEYOND_COMPONENTS, TEST_EVERY, WINDOW
from ..leaks.guard import MemoryGuard
from ..leaks.table import Finding
from ..leaks.tracker import require_free_name
from ..leaks.verdict import MIN_SAMPLES, TrendClass
from ..objects.census import Component
from .allocations import NewestAllocations
from .phase import Phase
from .report import Series, TimedFinding, WatchReport, write_report

LEAST_SECONDS = 0.5
_LOG = logging.getLogger(__name__)
_STAGE_SAMPLES = 256  # after which they are taken half as often: slower leaks need a longer window
_LEAST_SAMPLES = WINDOW // 2  # before which nothing is judged
_WRITE_SECONDS = 5.0
_SOONEST = 0.75  # of the distance, at which a sample is due: steps do not all take the same time
_PAUSE_SECONDS, _PAUSE = 2.0, 4  # least pause of a program, also in distances of samples
_MOST_OWED = WINDOW // 6  # of one phase: the judged two thirds have at least four
_COSTS = 8  # samples, whose median says what one costs


class Watch:
    """Judges whether the memory of this process grows while a program runs, and names the holder.

    Call `sample` after each step of the program, at one fixed phase. It measures seldom: so that it takes
    1 % of the time or less while nothing is suspected, and at least `seconds` apart, twice as far after each
    256 samples. A first verdict takes 48 of them, which is 24 s. What grows is a leak unless a container with
    a capacity that is not reached yet holds it, or memory that was asked for before is only touched now. A
    search for the holder takes 0.3 s to some seconds. It is repeated in growing distances while memory grows,
    because another holder may take over.

    It reads, and changes nothing of the program but for full collections of garbage. A forked child is not
    watched.

    Args:
        roots: Long-lived objects by name, to be named first; what they do not reach is named by module,
            class, or function and variable.
        seconds: Least time between two samples.
        share: CPU time of samples as a part of the time, over 0; more gives a verdict sooner.
        threshold_mb: Growth over the judged samples, in MB of 1e6 bytes, up to which memory counts as flat.
        folder: Where `watch.json` and `watch.html` are kept up to date; None for nowhere.
        trace: Name the lines that allocate, once there is a leak: from then on allocations are traced, and
            the program is slower. Of a tensor Python sees the object, not its bytes.
        automatic: Sample by itself after steps of the optimiser, and by time before the first of them. Growth
            before it may be loading, and is never a leak.
        at: Sample by itself after each call of this function, `package.module:function`.

    Raises:
        UsageError: If a number is out of its range, or `at` leads to no function.

    >>> with Watch() as watch:
    ...     for step in range(3):
    ...         watch.sample(step)
    >>> watch.report().verdict
    'undecided'
    """

    def __init__(
        self,
        roots: Mapping[str, Any] | None = None,
        *,
        seconds: float = LEAST_SECONDS,
        share: float = 0.01,
        threshold_mb: float = 1.0,
        folder: str | Path | None = None,
        trace: bool = False,
        automatic: bool = False,
        at: str | None = None,
    ) -> None:
        for name, value in (("seconds", seconds), ("share", share), ("threshold_mb", threshold_mb)):
            if not isinstance(value, int | float) or not value >= 0 or (not value and name != "seconds"):
                least = "at least" if name == "seconds" else "over"
                raise UsageError(f"{name} must be a number {least} 0, got {value!r}.")
        self._roots = dict(roots or {})
        self._folder = None if folder is None else Path(folder)
        # What grows and has a name is a leak at once.
        self._guard = MemoryGuard(threshold_mb=threshold_mb, searches_graphs=False, patience=0)
        self._components: dict[str, Callable[[], Any]] = {}
        self._seconds = self._least_seconds = seconds
        self._share = share
        is_automatic = automatic or at is not None
        self._phase = Phase(self._sample_counted, self._begin, seconds, at) if is_automatic else None
        self._guard.accuses = not self._is_loading
        self._trace = NewestAllocations() if trace else None
        self._series = Series()
        self._found: dict[tuple[str, TrendClass], TimedFinding] = {}
        self._began = self._sampled_at = time.perf_counter()
        self._written_at = -math.inf
        self._own_seconds, self._write_cost = 0.0, 0.0  # of the wall clock, of this thread's CPU time
        self._costs = deque[float](maxlen=_COSTS)
        self._step = self._first_step = self._next_step = 0
        self._samples = self._stage_samples = 0
        self._was_judged = self._grew = False
        self._owed = 0  # samples that a pause of the program has left out
        self._stride: int | None = None  # steps between two samples, None before that is known
        self._distance = seconds  # in seconds, of two samples of this stage
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        for name in [*_WAITING]:
            self.track(name, *_WAITING.pop(name))
        if self._phase is not None:
            self._phase.start()
        _ACTIVE.append(self)
        return self

    def __exit__(self, *raised: object) -> None:
        _ACTIVE.remove(self)
        if self._phase is not None:
            self._phase.stop()
        if self._trace is not None:
            self._trace.stop()
        if os.getpid() == self._pid:
            try:
                self._write()
            except OSError as error:
                _LOG.error("the report of the watch cannot be written: %s", error)

    def track(self, name: str, component: Callable[[], Any], threshold_mb: float | None = None) -> None:
        """Follow the size of what a callable returns, and judge it; with `/` a part of the one named before.

        What counts are tensors and arrays that it reaches; not bytes, texts, numbers and containers.

        Args:
            name: As in findings and metrics.
            component: Called at each sample; returns the object, or a container of several.
            threshold_mb: Its own growth over the judged samples up to which it counts as flat, in MB of 1e6
                bytes; None for that of the watch.

        Raises:
            UsageError: If the name is taken or no name.
        """
        _require_component(name, component, self._components)
        self._components[name] = component
        if threshold_mb is not None:
            self._guard.tracker.set_threshold(name, threshold_mb)

    def sample(self, step: int) -> None:
        """Take a sample if one is due after this step; steps only rise."""
        if step < self._next_step:
            return
        since = time.perf_counter() - self._sampled_at
        is_after_pause = self._stage_samples > 0 and since > max(_PAUSE_SECONDS, _PAUSE * self._distance)
        if is_after_pause:
            is_long = since >= _MOST_OWED * self._distance
            self._owed = _MOST_OWED if is_long else int(since / self._distance)
        if self._owed:
            self._owed -= 1
        elif self._stage_samples and self._stride is None:
            if since < self._distance:
                return
            self._stride = max(1, step - self._step)
        elif self._stage_samples and since < _SOONEST * self._distance:  # the program has become faster
            self._next_step = step + (self._stride or 1)
            return
        if os.getpid() != self._pid:
            self._next_step = sys.maxsize  # a forked child
            return
        # The distance follows the CPU time of this thread: a busy machine must not make samples rare.
        began, searched, cpu_began = time.perf_counter(), self._guard.search_seconds, time.thread_time()
        self._take(step, is_after_pause)
        self._sampled_at = time.perf_counter()
        self._costs.append(time.thread_time() - cpu_began)
        self._own_seconds += self._sampled_at - began - (self._guard.search_seconds - searched)
        is_known_dear = self._samples == _COSTS and self._affordable_distance() > self._distance
        if self._stage_samples >= _STAGE_SAMPLES:
            self._least_seconds *= 2
        if self._stage_samples >= _STAGE_SAMPLES or is_known_dear:
            self.restart(step)

    @property
    def _is_loading(self) -> bool:
        """Whether the program may still import and load: it has an optimiser's first step before it."""
        return self._phase is not None and self._phase.is_timed

    def _sample_counted(self, step: int) -> int:
        """Take a sample if one is due; return the step before which none is."""
        self.sample(step)
        return self._next_step

    def _begin(self, step: int) -> None:
        """Begin to judge, at the first step of an optimiser: what grew before was loaded."""
        self._found.clear()
        self._guard.findings.clear()
        self._guard.accuses = True
        self._least_seconds = self._seconds
        self.restart(step)
        self._was_judged = self._grew = False

    def restart(self, step: int) -> None:
        """Judge only what comes after this step, because more memory is normal from here on."""
        self._grew = self._grows()
        self._guard.restart(step, "more memory is normal")
        self._stage_samples = self._owed = 0
        self._stride, self._next_step = None, step + 1
        self._distance = self._least_seconds
        if len(self._costs) == _COSTS:  # the first ones are cold, and one may have searched for a holder
            self._distance = max(self._distance, self._affordable_distance())

    def _affordable_distance(self) -> float:
        """Return the seconds between two samples that keep to the share of time."""
        return statistics.median(self._costs) / self._share

    @property
    def findings(self) -> list[Finding]:
        """What was found, in order."""
        return [each.finding for each in self._found.values()]

    @property
    def verdict(self) -> str:
        """`leak`, `filling`, `flat`, or `undecided`: too few samples, or growth that is not certain.

        Growth that has been flat since over a whole window of 96 samples has ended and counts no more, until
        it begins again.
        """
        found = {each.finding.verdict for each in self._found.values() if each.ended is None}
        for certain in (TrendClass.leak, TrendClass.filling):
            if certain in found:
                return certain.value
        is_flat = self._was_judged and not self._grows()
        return (TrendClass.flat if is_flat else TrendClass.undecided).value

    def metrics(self, per: str = "report") -> dict[str, float]:
        """Return `memory/<name>/size_mb` and `memory/<name>/growth_mb_per_<per>` of all that is tracked.

        Call it once for each `per`, such as "epoch": growth is that since the call before, in the first call
        that since its first sample. MB are 1e6 bytes.
        """
        tags = self._guard.tracker.report(self._step).tags() if self._components else {}
        return {tag.replace("_per_report", f"_per_{per}"): value for tag, value in tags.items()}

    def report(self) -> WatchReport:
        """Return what is known now."""
        return WatchReport(
            verdict=self.verdict,
            is_loading=self._is_loading,
            findings=tuple(map(replace, self._found.values())),
            newest_allocations=() if self._trace is None else tuple(self._trace.lines()),
            trends=self._guard.trends(),
            series=self._series,
            steps=self._step - self._first_step,
            unit="steps of a clock (no optimiser steps)" if self._is_loading else "steps",
            samples=self._samples,
            seconds=time.perf_counter() - self._began,
            own_seconds=self._own_seconds,
            searches=self._guard.searches,
            search_seconds=self._guard.search_seconds,
        )

    def _grows(self) -> bool:
        """Return whether anything grows, by what is judged of this stage, or else by the one before."""
        tests = self._guard.trends().values()
        if all(test.samples < MIN_SAMPLES for test in tests):  # the first of a stage are passed over
            return self._grew
        return any(test.verdict is TrendClass.growing for test in tests)

    def _take(self, step: int, is_after_pause: bool = False) -> None:
        if not self._samples:
            self._first_step = step
        self._step = step
        self._samples += 1
        self._stage_samples += 1
        self._next_step = step + (1 if self._owed else self._stride or 1)
        counters = self._guard.counters()
        components = {name: Component((each(),)) for name, each in self._components.items()}
        self._guard.sample(step, counters, self._roots, components, is_after_pause)
        elapsed = time.perf_counter() - self._began
        self._series.add(step, elapsed, counters)
        self._was_judged |= self._stage_samples >= _LEAST_SAMPLES
        for finding in self._guard.findings:  # what is found again may have a name now
            key = finding.resource, finding.verdict
            self._found.setdefault(key, TimedFinding(finding, elapsed, step)).finding = finding
        self._guard.findings.clear()
        self._note_ends(step)
        if self._trace is not None and self.verdict == TrendClass.leak.value:
            self._trace.sample()
        if elapsed - self._written_at > max(_WRITE_SECONDS, self._write_cost / self._share):
            with suppress(OSError):  # a full disk may have room later, and at the end it is told
                self._write()

    def _note_ends(self, step: int) -> None:
        """Mark what has come to rest, such as a cache that is full, and what grew again after that."""
        if not self._found or self._stage_samples % TEST_EVERY:
            return
        parts = self._guard.tracker.detectors().items()
        tests = self._guard.trends() | {f"the component {name}": each.trend_test() for name, each in parts}
        for each in self._found.values():
            resource = each.finding.resource
            test = tests.get(resource) or tests.get(resource + BEYOND_COMPONENTS)
            if test is None or each.has_returned:
                continue
            if each.ended is not None and test.verdict is TrendClass.growing:
                each.ended, each.has_returned = None, True
            elif each.ended is None and test.samples == WINDOW and test.verdict is TrendClass.flat:
                each.ended = step

    def _write(self) -> None:
        if self._folder is not None:
            began = time.thread_time()
            self._written_at = time.perf_counter() - self._began
            write_report(self.report(), self._folder)
            self._write_cost = time.thread_time() - began


def _require_component(name: str, component: object, taken: Container[str]) -> None:
    require_free_name(name, taken)
    if not callable(component):
        what = f"track({name!r}) needs a function that returns the object"
        raise UsageError(f"{what}, got a {type(component).__name__}: lambda: it.")


_ACTIVE: list[Watch] = []
_WAITING: dict[str, tuple[Callable[[], Any], float | None]] = {}


def track(name: str, component: Callable[[], Any], threshold_mb: float | None = None) -> None:
    """Follow the size of what a callable returns in the innermost watch, or in the next one to begin.

    The arguments are those of `Watch.track`.

    >>> track("replay", lambda: [])

    Raises:
        UsageError: If the name is taken or no name.
    """
    if _ACTIVE:
        _ACTIVE[-1].track(name, component, threshold_mb)
    else:
        _require_component(name, component, _WAITING)
        _WAITING[name] = component, threshold_mb
