"""Sample the memory of a running program, judge it, and report the holder of growth."""

import logging
import math
import os
import shlex
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
from ..texts import printable, with_place
from .allocations import NewestAllocations
from .phase import Phase
from .report import Series, TimedFinding, WatchReport, write_report

LEAST_SECONDS = 0.5
_LOG = logging.getLogger(__name__)
# After this many samples the distance doubles, because slower leaks need a longer window.
_STAGE_SAMPLES = 256
# The number of samples before the first verdict.
_LEAST_SAMPLES = WINDOW // 2
_WRITE_SECONDS = 5.0
_PROGRESS_SECONDS = 60.0
# A sample is due once this fraction of the distance has passed, because steps vary in duration.
_SOONEST = 0.75
# The minimum pause of a program, in seconds and in distances between samples.
_PAUSE_SECONDS, _PAUSE = 2.0, 4
# The limit for one phase. The judged two thirds then contain at least four phases.
_MOST_OWED = WINDOW // 6
# The median over this many samples estimates the cost of a sample.
_COSTS = 8


class Watch:
    """Judges whether the memory of this process grows while a program runs, and reports the holder.

    Call `sample` after each step of the program, at a fixed phase. It measures rarely: at most 1 % of the
    time while there is no suspicion, and at intervals of at least `seconds`, which double after every 256
    samples. A first verdict needs 48 samples, or 24 s. Growth is a leak unless its holder is a container
    below its capacity, or the program is touching previously allocated memory for the first time. A search
    for the holder lasts 0.3 s to several seconds. It is repeated at increasing intervals while memory grows,
    because the holder may change.

    The watch is read-only, except that it forces full garbage collections. For child processes that grow, it
    reports the PID and the command.

    Args:
        roots: Long-lived objects by name, which are searched first. Other holders are reported by module,
            class, or function and variable.
        seconds: Minimum time between two samples.
        share: Maximum share of the CPU time for samples, above 0. A larger share gives an earlier verdict.
        threshold_mb: Growth over the judged samples that still counts as flat, in MB of 1e6 bytes.
        folder: Folder in which `watch.json` and `watch.html` are kept up to date, or `None` for no files.
        trace: Report the lines that allocate once there is a leak. The program is slower from then on,
            because allocations are traced. For tensors, the trace includes the object but not its data.
        automatic: Sample automatically after optimizer steps, and by time before the first step. Growth
            before the first step may be loading, and is never a leak.
        at: Sample automatically after each call of this function, `package.module:function`.

    Raises:
        UsageError: If a number is out of range, or `at` is not a function.

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
                least = ">=" if name == "seconds" else ">"
                raise UsageError(f"{name} must be a number {least} 0, got {value!r}.")
        self._roots = dict(roots or {})
        self._folder = None if folder is None else Path(folder)
        # With a patience of 0, growth with a known holder is a leak immediately.
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
        # The file name is enough, because a path may contain the name of the user.
        program, *arguments = sys.argv or [""]
        self._command = printable(shlex.join([Path(program).name, *arguments]))
        self._started = time.strftime("%Y-%m-%d %H:%M:%S %Z")
        self._began = self._sampled_at = time.perf_counter()
        self._written_at = -math.inf
        self.progress: Callable[[str], None] | None = None
        """Called at most once a minute with a line about the samples so far."""
        self._progress_at = 0.0
        # Seconds of wall-clock time, and seconds of this thread's CPU time.
        self._own_seconds, self._write_cost, self._longest_pause = 0.0, 0.0, 0.0
        self._costs = deque[float](maxlen=_COSTS)
        # `_passed` counts the steps before those that the program counts, for example in earlier epochs.
        self._step = self._first_step = self._next_step = self._passed = 0
        self._samples = self._stage_samples = 0
        self._was_judged = self._grew = False
        # The number of samples missed during a pause of the program.
        self._owed = 0
        # Steps between two samples, or `None` before it is known.
        self._stride: int | None = None
        # Seconds between two samples of this stage.
        self._distance = seconds
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
                self._guard.finish(self._roots)
                self._note_findings(time.perf_counter() - self._began)
                self._write()
            except Exception as error:
                _LOG.error("the report of the watch cannot be written: %s", with_place(error))

    def track(self, name: str, component: Callable[[], Any], threshold_mb: float | None = None) -> None:
        """Track and judge the size of the object that a callable returns.

        The size counts tensors and arrays reachable from the object, not bytes, strings, numbers and
        containers.

        Args:
            name: Name in findings and metrics. A name with `/` is part of the object named before the `/`.
            component: Called at each sample. Returns the object, or a container of several objects.
            threshold_mb: Growth over the judged samples that still counts as flat, in MB of 1e6 bytes, or
                `None` for the threshold of the watch.

        Raises:
            UsageError: If the name is invalid or already used.
        """
        _require_component(name, component, self._components)
        self._components[name] = component
        if threshold_mb is not None:
            self._guard.tracker.set_threshold(name, threshold_mb)

    def sample(self, step: int) -> None:
        """Take a sample if one is due after this step. The count continues if steps start again at 0."""
        if step + self._passed < self._step:
            self._passed = self._step + 1
        step += self._passed
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
        elif self._stage_samples and since < _SOONEST * self._distance:
            # The program has become faster.
            self._next_step = step + (self._stride or 1)
            return
        if os.getpid() != self._pid:
            # This is a forked child.
            self._next_step = sys.maxsize
            return
        # The distance depends on the CPU time of this thread, because a busy machine must not make samples
        # rare.
        began, searched, cpu_began = time.perf_counter(), self._guard.search_seconds, time.thread_time()
        self._take(step, is_after_pause)
        self._sampled_at = time.perf_counter()
        self._costs.append(time.thread_time() - cpu_began)
        self._longest_pause = max(self._longest_pause, self._sampled_at - began)
        self._own_seconds += self._sampled_at - began - (self._guard.search_seconds - searched)
        is_known_dear = self._samples == _COSTS and self._affordable_distance() > self._distance
        if self._stage_samples >= _STAGE_SAMPLES:
            self._least_seconds *= 2
        if self._stage_samples >= _STAGE_SAMPLES or is_known_dear:
            self.restart(step)

    @property
    def _is_loading(self) -> bool:
        """Whether the program may still be importing and loading, before an optimizer's first step."""
        return self._phase is not None and self._phase.is_timed

    def _sample_counted(self, step: int) -> int:
        """Take a sample if one is due, and return the first step at which the next may be due."""
        self.sample(step)
        return self._next_step

    def _begin(self, step: int) -> None:
        """Start judging at the first optimizer step. Earlier growth came from loading."""
        self._found.clear()
        self._guard.findings.clear()
        self._guard.accuses = True
        self._least_seconds, self._series = self._seconds, Series()
        self.restart(step)
        self._was_judged = self._grew = False

    def restart(self, step: int) -> None:
        """Judge only samples after this step, because more memory is normal from then on."""
        self._grew = self._grows()
        self._guard.restart(step, "more memory is normal")
        self._stage_samples = self._owed = 0
        self._stride, self._next_step = None, step + 1
        self._distance = self._least_seconds
        # The first samples are slower, and one may have searched for a holder.
        if len(self._costs) == _COSTS:
            self._distance = max(self._distance, self._affordable_distance())

    def _affordable_distance(self) -> float:
        """Return the seconds between two samples that respect the share of time."""
        return statistics.median(self._costs) / self._share

    @property
    def findings(self) -> list[Finding]:
        """All findings, in order."""
        return [each.finding for each in self._found.values()]

    @property
    def verdict(self) -> str:
        """`leak`, `filling`, `flat`, or `undecided` (too few samples, or growth that is not certain).

        Growth counts as ended after a full window of 96 flat samples, until it resumes. It also counts as
        ended once 90 % of it is released, until more than 1.5 times as much has grown.
        """
        found = {each.finding.verdict for each in self._found.values() if each.ended is None}
        for certain in (TrendClass.leak, TrendClass.filling):
            if certain in found:
                return certain.value
        is_flat = self._was_judged and not self._grows()
        return (TrendClass.flat if is_flat else TrendClass.undecided).value

    @property
    def has_failed(self) -> bool:
        """Whether an internal error has ended the watch of an unmodified program."""
        return self._phase is not None and self._phase.has_failed

    def metrics(self, per: str = "report") -> dict[str, float]:
        """Return `memory/<name>/size_mb` and `memory/<name>/growth_mb_per_<per>` of all tracked objects.

        Call it once for each `per`, such as "epoch". The growth is relative to the previous call, or to the
        first sample. MB are 1e6 bytes.
        """
        tags = self._guard.tracker.report(self._step).tags() if self._components else {}
        return {tag.replace("_per_report", f"_per_{per}"): value for tag, value in tags.items()}

    def report(self) -> WatchReport:
        """Return a report of the current state."""
        return WatchReport(
            command=self._command,
            started=self._started,
            verdict=self.verdict,
            findings=tuple(map(replace, self._found.values())),
            newest_allocations=() if self._trace is None else tuple(self._trace.lines),
            trends=self._guard.trends(),
            series=self._series,
            holders=self._guard.holders,
            steps=self._step - self._first_step,
            unit="clock ticks (no optimizer steps)" if self._is_loading else "steps",
            samples=self._samples,
            seconds=time.perf_counter() - self._began,
            own_seconds=self._own_seconds,
            searches=self._guard.searches,
            search_seconds=self._guard.search_seconds,
            longest_pause=self._longest_pause,
        )

    def _grows(self) -> bool:
        """Return whether anything grows in this stage or, before its first test, in the previous one."""
        tests = self._guard.trends().values()
        # The first samples of a stage are skipped.
        if all(test.samples < MIN_SAMPLES for test in tests):
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
        self._series.add(step, elapsed, counters | self._guard.tracker.sizes_mb())
        self._was_judged |= self._stage_samples >= _LEAST_SAMPLES
        self._note_findings(elapsed)
        self._note_ends(step)
        if self._trace is not None and self.verdict == TrendClass.leak.value:
            self._trace.sample()
        if elapsed - self._written_at > max(_WRITE_SECONDS, self._write_cost / self._share):
            # A full disk may have space later, and the final write reports an error.
            with suppress(OSError):
                self._write()
        if self.progress is not None and elapsed - self._progress_at >= _PROGRESS_SECONDS:
            self._progress_at = elapsed
            self.progress(self._progress_text())

    def _progress_text(self) -> str:
        """Return the number of samples and the verdict so far."""
        growing = "growing" if self._grows() else "flat"
        state = {"leak": "leaking", "undecided": growing}.get(self.verdict, self.verdict)
        samples = f"{self._samples:,}" if self._was_judged else f"{self._stage_samples} of {_LEAST_SAMPLES}"
        return f"{samples} samples, {state} so far"

    def _note_findings(self, elapsed: float) -> None:
        # A finding that is repeated may now have a holder. Its step remains that of its first report.
        for finding in self._guard.findings:
            key = finding.resource, finding.verdict
            timed = self._found.setdefault(key, TimedFinding(finding, elapsed))
            timed.finding = replace(finding, step=timed.finding.step)
        self._guard.findings.clear()

    def _note_ends(self, step: int) -> None:
        """Mark findings that have ended, such as a full cache, and findings that have resumed."""
        if not self._found or self._stage_samples % TEST_EVERY:
            return
        parts = self._guard.tracker.detectors().items()
        tests = self._guard.trends() | {f"the component {name}": each.trend_test() for name, each in parts}
        for each in self._found.values():
            resource = each.finding.resource
            test = tests.get(resource) or tests.get(resource + BEYOND_COMPONENTS)
            if test is not None:
                each.follow(step, test)

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
        raise UsageError(f"{what}, but got a {type(component).__name__}. Wrap it: lambda: <object>.")


_ACTIVE: list[Watch] = []
_WAITING: dict[str, tuple[Callable[[], Any], float | None]] = {}


def track(name: str, component: Callable[[], Any], threshold_mb: float | None = None) -> None:
    """Track the size of the object that a callable returns, in the innermost watch or in the next one.

    The arguments are those of `Watch.track`.

    >>> track("replay", lambda: [])

    Raises:
        UsageError: If the name is invalid or already used.
    """
    if _ACTIVE:
        _ACTIVE[-1].track(name, component, threshold_mb)
    else:
        _require_component(name, component, _WAITING)
        _WAITING[name] = component, threshold_mb
