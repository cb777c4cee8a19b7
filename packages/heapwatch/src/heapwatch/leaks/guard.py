"""Guard the memory of a run: sample counters, classify them, and report the holder of growth."""

import contextlib
import gc
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..counters.cuda import cuda_in_use, headroom_bytes
from ..counters.glibc import in_use_bytes, malloc_bytes, trim_heap
from ..counters.process import memory_counters, shared_bytes
from ..objects.census import Component
from ..objects.graph_holders import find_graph_holders, first_graph
from ..objects.growth import ELSEWHERE, NATIVE, GrowthSources, Heap, Message, resource_sources, sources_of
from ..objects.heap import growth_sources, measure_heap
from .children import CHILD_MEMORY, ChildProcesses
from .detector import (
    BEYOND_COMPONENTS,
    WINDOW,
    LeakDetector,
    WatchedCounter,
    accounted_tag,
    classify_resident,
    confirm,
    hours_to_limit,
    watched_counters,
)
from .suspicion import Growth, Suspicion, now_bytes
from .table import Finding
from .tracker import MemoryTracker
from .verdict import TrendClass, TrendTest, classify_trend, saturates

_LOG = logging.getLogger(__name__)
_BYTES_PER_MB = 1e6
_MOST_FINDINGS = 100
_MOST_GRAPHS = 3
_SAMPLES_PER_GRAPH_CHECK = 8
_PATIENCE = 480
_GARBAGE = GrowthSources(("only the garbage collector frees it: objects in reference cycles",))
_Roots = Mapping[str, Any]
_Lines = tuple[str, ...]
_PRIVATE_TAG, _MAPPED_TAG = "debug/cpu/rss_anon_mb", "debug/cpu/mapped_mb"
_MAPPED = "not seen in Python's heap: memory that a library maps itself, past the C allocator"
_NO_SOURCES = GrowthSources(())
_TOUCHED = "memory that was allocated earlier is used for the first time: at most {:,.0f} MB more"


class MemoryGuard:
    """Samples each counter once per log interval, classifies the series, and reports the holder of growth.

    Memory accounted for by components is subtracted, so a filling replay buffer is not growth. `events` are
    the first-time events of this run, by the names passed to `mark_first`. The guard judges only after all of
    them, because each allocates memory that is not freed. It keeps numbers and strings, and does not
    reference components.

    Args:
        events: Names of the first-time events to wait for.
        threshold_mb: Growth over the judged window, in MB of 1e6 bytes, below which memory counts as flat.
        leak_share: Share of the free memory, in [0, 1], above which growth is certainly a leak.
        searches_graphs: Whether samples search for autograd graphs that outlive their update.
        patience: Samples of uninterrupted growth after which growth with a known holder is a leak.
        log: Logger for the findings.
    """

    def __init__(
        self,
        events: Sequence[str] = (),
        *,
        threshold_mb: float = 1.0,
        leak_share: float = 0.05,
        searches_graphs: bool = True,
        patience: int = _PATIENCE,
        log: logging.Logger = _LOG,
    ) -> None:
        self._leak_share = leak_share
        self._searches_graphs = searches_graphs
        self._patience = patience
        self._log = log
        self.tracker = MemoryTracker(threshold_mb)
        self.findings: list[Finding] = []
        # Trimming the heap before each sample makes resident memory exact.
        self.trim_heap = False
        # Once reference cycles have grown, they are collected before each sample. They would hide a leak.
        self._collects = False
        self.accuses = True
        """Whether growth can be a leak. It cannot while a program is only loading."""
        self.searches, self.search_seconds = 0, 0.0
        """Number of heap searches, and their total wall-clock seconds."""
        self.holders: dict[str, dict[str, list[tuple[int, float]]]] = {}
        """Steps and bytes of each holder that a search has found, by kind of device, then by name."""
        # Step of the last first-time event. Later samples are comparable.
        self.steady_since = 0
        self._threshold_mb = threshold_mb
        self._devices: tuple[str, ...] = ("cpu",)
        self._watched: dict[WatchedCounter, LeakDetector] = {}
        self._awaited = set(events)
        self._watch(on_cuda=False)
        # The time and the step of the first comparable sample, the last step, and the number of such samples.
        self._began, self._began_at, self._step, self._samples = 0.0, 0, 0, 0
        self._suspicion: Suspicion | None = None
        self._growths: dict[WatchedCounter, Growth] = {}
        self._children = ChildProcesses(threshold_mb * _BYTES_PER_MB)
        self._grown_components: dict[str, Growth] = {}
        # The counters of the last sample.
        self._counters: Mapping[str, float] = {}
        # Host memory retained by earlier searches.
        self._own_bytes = 0
        self._shown_graphs: set[str] = set()
        # NumPy allocates at first use. These calls keep that out of the run's growth.
        saturates(np.arange(float(WINDOW)))
        classify_trend(np.arange(float(WINDOW)), tolerance_bytes=1.0)

    def _watch(self, on_cuda: bool) -> None:
        for counter in watched_counters(self._threshold_mb, on_cuda):
            detector = LeakDetector(counter.tolerance, wait_for=tuple(self._awaited))
            self._watched.setdefault(counter, detector)

    @property
    def has_leak(self) -> bool:
        """Whether a leak is certain."""
        return any(finding.verdict is TrendClass.leak for finding in self.findings)

    def mark_first(self, step: int, name: str) -> None:
        """Restart the tests, because a first-time event (update, evaluation, checkpoint) allocates."""
        if name in self._awaited:
            self._awaited.remove(name)
            self.restart(step, name)

    def restart(self, step: int, reason: str) -> None:
        """Judge only samples after this step."""
        for each in (*self._watched.values(), self.tracker, self._children):
            each.restart(step, reason)
        self.steady_since, self._samples = step, 0
        self._forget()

    def trends(self) -> dict[str, TrendTest]:
        """Return the test of each available counter over the current window."""
        tests = {counter.name: detector.trend_test() for counter, detector in self._watched.items()}
        return {name: test for name, test in (tests | self._children.trends()).items() if test.samples}

    def counters(self) -> dict[str, float]:
        """Return the current counters of the process and its GPU by log tag."""
        if self._collects:
            gc.collect()
        if self.trim_heap:
            trim_heap()
        return memory_counters()

    def sample(
        self,
        step: int,
        counters: dict[str, float],
        roots: _Roots,
        components: Mapping[str, Component],
        is_after_pause: bool = False,
    ) -> dict[str, float]:
        """Take a sample of all counters at the loop's fixed phase, and return additional tags to log."""
        if not self._samples:
            # Earlier garbage must neither be freed during the judged window nor count as growth in it.
            gc.collect()
            self._began, self._began_at = time.monotonic(), step
        # Many programs use CUDA only after the watch has started.
        if self._devices == ("cpu",) and cuda_in_use():
            self._devices = ("cpu", "cuda")
            self._watch(on_cuda=True)
        self._samples += 1
        self._step, self._counters = step, counters
        is_judged_anew = self.tracker.sample(step, components, is_after_pause)
        held = {device: self.tracker.accounted_bytes(device) for device in self._devices}
        held["cpu"] += self._own_bytes
        accounted = {accounted_tag(device): nbytes / _BYTES_PER_MB for device, nbytes in held.items()}
        tags = counters | accounted
        for counter, detector in self._watched.items():
            value = counter.read(tags)
            if value is not None:
                is_judged_anew |= detector.add(step, value, is_after_pause)
        if is_judged_anew:
            self._judge_all(roots)
        if self._children.sample(step, tags["debug/cpu/children_count"], self._awaited, is_after_pause):
            for child, name, others in self._children.growing():
                # The number of others changes often, so only its magnitude is news.
                self._report_news(name, CHILD_MEMORY, child.detector, child.growth, str(others.bit_length()))
        if self._searches_graphs and self._samples % _SAMPLES_PER_GRAPH_CHECK == 1:
            # Updates may be rare, and acting can also leak.
            self.check_graphs(step, roots)
        return accounted

    def check_graphs(self, step: int, roots: _Roots) -> None:
        """Search for an autograd graph that outlives its update, and report it as a leak."""
        path = first_graph(roots)
        if path is not None and path not in self._shown_graphs:
            self._shown_graphs.add(path)
            what = "an autograd graph that outlives its update"
            holders = find_graph_holders(roots).holders[:_MOST_GRAPHS]
            self._report(Finding(step, what, TrendClass.leak, tuple(holder.text() for holder in holders)))

    def _forget(self) -> None:
        """Clear all suspicions and growth."""
        self._suspicion = None
        self._growths.clear()
        self._grown_components.clear()

    def _judge_all(self, roots: _Roots) -> None:
        """Judge each counter and component that may grow."""
        detectors = (*self._watched.values(), *self.tracker.detectors().values())
        if not any(detector.is_suspect for detector in detectors):
            with self._uncounted():
                self._forget()
            return
        if self._suspicion is None:
            if not self._report_garbage():
                # The holder of the growth is searched later, relative to this state.
                self._suspect(roots, is_whole=False)
            return
        for counter, detector in self._watched.items():
            if not detector.grows:
                self._growths.pop(counter, None)
            elif detector.alarm or self._is_urgent(counter, detector):
                self._judge(counter, self._suspicion, roots)
        self._judge_components(self._suspicion, roots)

    def _report_garbage(self) -> bool:
        """Report garbage before a search collects it, and return whether there is any."""
        found = False
        for counter, detector in self._watched.items():
            if detector.is_suspect and counter.source is None:
                rise = detector.trend_test().rise_bytes
                if confirm(rise, lambda counter=counter: now_bytes(counter)) is TrendClass.collectable:
                    self._report_growth(counter.name, counter, detector, TrendClass.collectable, _GARBAGE)
                    detector.restart(self._step, "finding")
                    found = True
        return found

    def _suspect(self, roots: _Roots, is_whole: bool) -> None:
        """Record the current heap and counters as the reference for later growth."""
        with self._searching():
            held = measure_heap(roots, is_whole)
        # The heap is also trimmed before an alarm about resident memory.
        trim_heap()
        self._suspicion = Suspicion(self._step, held)

    @contextlib.contextmanager
    def _uncounted(self) -> Iterator[None]:
        """Account for the memory that a search leaves behind."""
        before = in_use_bytes()
        yield
        self._own_bytes += in_use_bytes() - before

    @contextlib.contextmanager
    def _searching(self) -> Iterator[None]:
        """Count a search of the heap, its duration, and the memory it leaves behind."""
        began = time.monotonic()
        with self._uncounted():
            yield
        self.searches += 1
        self.search_seconds += time.monotonic() - began

    def _judge(self, counter: WatchedCounter, suspicion: Suspicion, roots: _Roots) -> None:
        """Interpret an alarm, and report the holder of the growth."""
        detector, growth = self._watched[counter], self._growths.get(counter)
        if growth is None:
            verdict, sources = self._explain(counter, suspicion)
            if verdict is not TrendClass.growing:
                if verdict is not TrendClass.flat:
                    self._report_growth(counter.name, counter, detector, verdict, GrowthSources(sources))
                detector.restart(self._step, "given back" if verdict is TrendClass.flat else "finding")
                return
            known = self._known(counter, sources, suspicion, roots)
            growth = self._growths[counter] = Growth(known, is_searched_for=not sources)
        if growth.is_due and counter.unit != "MB" and not growth.found.messages:
            # Few files or threads may have been created between the suspicion and the alarm.
            growth.found = self._known(counter, (counter.source or "",), suspicion, roots)
            growth.reported = None if growth.found.messages else growth.reported
        growth.trend_tests += 1
        # Growth with a known holder is searched again, because another holder may have started to grow.
        is_due = growth.is_searched_for and growth.is_due
        if not is_due or self._search(counter, growth, suspicion, roots):
            self._report_news(counter.name, counter, detector, growth, growth.found.holder)

    def finish(self, roots: _Roots) -> None:
        """Search for the holders that are not found yet. No further test follows at the end of a program.

        Memory that the program has freed since the last sample has no holder.
        """
        for counter, growth in self._growths.items():
            detector, last = self._watched[counter], self._counters[counter.tag] * counter.scale
            is_freed = last - now_bytes(counter) >= detector.trend_test().rise_bytes / 2
            is_pending = growth.is_searched_for and not growth.found.is_named and not is_freed
            if is_pending and self._suspicion is not None:
                self._search(counter, growth, self._suspicion, roots)
                # Local variables are gone, so only a path from a module or a class is certain.
                if (growth.found.holder or "").startswith(("module ", "class ")):
                    self._report_news(counter.name, counter, detector, growth, growth.found.holder)

    def _known(
        self, counter: WatchedCounter, lines: _Lines, suspicion: Suspicion, roots: _Roots
    ) -> GrowthSources:
        """Return a known source, or at least half of its objects: such as tensors in shared memory."""
        if not lines:
            return GrowthSources((), is_named=False)
        heap = self._heap_since(suspicion, counter, roots)
        steps, rise = self._step - suspicion.step, suspicion.rise(counter)
        if counter.unit == "MB":
            found = sources_of(suspicion.heap, heap, steps, rise)
            if found.is_named and not found.lines[0].startswith(NATIVE):
                return found
            return GrowthSources(lines, messages=(self._outside(counter, suspicion, lines[0]),))
        return resource_sources(suspicion.heap, heap, steps, rise / 2, lines, counter.unit == "files")

    def _explain(self, counter: WatchedCounter, suspicion: Suspicion) -> tuple[TrendClass, _Lines]:
        """Return the meaning of an alarm, and the holder if it is known without a search."""
        known = (counter.source,) if counter.source is not None else ()
        detector = self._watched[counter]
        rise = detector.trend_test().rise_bytes
        if counter.kept_from is None:
            verdict = confirm(rise, lambda: now_bytes(counter))
            if verdict is TrendClass.growing and suspicion.is_first_use(counter):
                left = (shared_bytes() - now_bytes(counter)) / _BYTES_PER_MB
                return TrendClass.filling, (_TOUCHED.format(left),)
            return verdict, _GARBAGE.lines if verdict is TrendClass.collectable else known
        held = next(other for each, other in self._watched.items() if each.name == counter.kept_from)
        values, steps = detector.values(), detector.steps()
        found = classify_resident(held.trend_test(), values, held.tolerance_bytes, steps)
        if found.verdict is not TrendClass.retention:
            # The live objects grow too, and have their own alarm.
            return TrendClass.flat, ()
        before = now_bytes(counter)
        trim_heap()
        # The allocator only cached the memory.
        if before - now_bytes(counter) >= rise / 2:
            return TrendClass.flat, ()
        touched, now = suspicion.rise(counter), memory_counters()
        if counter.tag == _PRIVATE_TAG and _MAPPED_TAG in now:
            mapped = (now[_MAPPED_TAG] - suspicion.counters[_MAPPED_TAG]) * _BYTES_PER_MB
            if mapped < touched / 2:
                return TrendClass.filling, (_TOUCHED.format(now[_MAPPED_TAG] - now[_PRIVATE_TAG]),)
        system, was = malloc_bytes("arena", "hblkhd"), suspicion.system_bytes
        if system is not None and was is not None and system - was < touched / 2:
            # The memory did not come from the C allocator: Python or a library mapped it.
            return TrendClass.growing, ()
        return TrendClass.retention, known

    def _search(self, counter: WatchedCounter, growth: Growth, suspicion: Suspicion, roots: _Roots) -> bool:
        """Search for the holder of recent growth. Return False if the next test must search again."""
        device, since = "cuda" if counter.on_gpu else "cpu", growth.since or suspicion
        heap = self._heap_since(since, counter, roots)
        found = sources_of(since.heap, heap, self._step - since.step, since.rise(counter), device)
        for each in found.messages:
            if each.sizes:
                points = self.holders.setdefault(device, {}).setdefault(each.owner, [])
                points += zip((since.step, self._step), each.sizes, strict=True)
        if ELSEWHERE in found.lines:
            self._suspect(roots, is_whole=True)
            growth.since, growth.trend_tests = None, 0
            return False
        if found.is_named:
            if found.lines[0].startswith(NATIVE):
                line = _MAPPED if counter.kept_from else found.lines[0]
                message = self._outside(counter, suspicion, line, heap.totals.get(device, 0.0))
                found = replace(found, lines=(line,), messages=(message, *found.messages))
            growth.found, growth.since = found, Suspicion(self._step, heap)
        elif not growth.found.is_named:
            growth.found = found
        return True

    def _heap_since(self, since: Suspicion, counter: WatchedCounter, roots: _Roots) -> Heap:
        """Measure the heap, with an earlier state as the reference."""
        share = max(1, self._step - since.step) / max(1.0, self._watched[counter].judged_steps)
        with self._searching():
            return measure_heap(roots, since.heap.is_whole, since.heap, share)

    def _outside(self, counter: WatchedCounter, suspicion: Suspicion, line: str, held: float = 0) -> Message:
        """Describe growth outside Python. Python objects hold `held` bytes of the counter."""
        live = sum(now_bytes(other) for other in self._watched if other.name == counter.kept_from)
        rate = self._watched[counter].trend_per_step().slope_bytes_per_sample
        return suspicion.outside_message(counter, line, live or held, rate)

    def _judge_components(self, suspicion: Suspicion, roots: _Roots) -> None:
        """Report components that exceed their plan by name."""
        grown, self._grown_components = self._grown_components, {}
        for name, detector in self.tracker.detectors().items():
            if not detector.alarm:
                continue
            growth = self._grown_components[name] = grown.get(name, Growth(_NO_SOURCES))
            growth.trend_tests += 1
            device = self.tracker.device_kind(name)
            counter = next(each for each in self._watched if each.on_gpu is (device == "cuda"))
            is_news = growth.reported != (self._verdict_of(growth, counter, detector), name)
            if growth.is_due if growth.found.is_filling else is_news:
                steps = self._step - suspicion.step
                with self._searching():
                    found = growth_sources(roots, suspicion.heap, steps, 0.0, device)
                growth.found = found if found.is_named else _NO_SOURCES
            self._report_news(f"the component {name}", counter, detector, growth, name)

    def _verdict_of(self, growth: Growth, counter: WatchedCounter, detector: LeakDetector) -> TrendClass:
        """Return whether growth is a leak: urgent, long-lasting with a known holder, or not memory.

        A cache may take a long time to fill, so growth is urgent only once it has used `leak_share` of the
        free memory.
        """
        if growth.found.is_filling:
            return TrendClass.filling
        is_patient = growth.found.is_named and detector.growing_samples >= self._patience
        # Files, threads and shared memory do not saturate outside such a container.
        never_ends = counter.source is not None and counter.kept_from is None
        is_certain = never_ends or is_patient or self._is_urgent(counter, detector)
        return TrendClass.leak if is_certain and self.accuses else TrendClass.growing

    def _is_urgent(self, counter: WatchedCounter, detector: LeakDetector) -> bool:
        taken = detector.trend_test().slope_bytes_per_sample * detector.growing_samples
        return counter.unit == "MB" and taken >= self._leak_share * headroom_bytes(counter.on_gpu)

    def _report_news(
        self, what: str, counter: WatchedCounter, detector: LeakDetector, growth: Growth, holder: str | None
    ) -> None:
        """Report growth if it is new, or if its verdict or holder has changed."""
        verdict = self._verdict_of(growth, counter, detector)
        if growth.reported != (verdict, holder):
            growth.reported = verdict, holder
            self._report_growth(what, counter, detector, verdict, growth.found)

    def _report_growth(
        self,
        what: str,
        counter: WatchedCounter,
        detector: LeakDetector,
        verdict: TrendClass,
        found: GrowthSources,
    ) -> None:
        """Report the resource, the growth rate, and the time until the memory is exhausted."""
        test = detector.trend_per_step()
        rate = f", {1000 * test.slope_bytes_per_sample / counter.scale:+,.3f} {counter.unit} per 1,000 steps"
        # Filling ends without intervention, so it gets no estimate.
        if counter.unit == "MB" and verdict is not TrendClass.filling:
            seconds = (time.monotonic() - self._began) / max(1, self._step - self._began_at)
            hours = hours_to_limit(test, seconds, headroom_bytes(counter.on_gpu))
            rate += "" if hours is None else f"; at this rate, memory runs out in {hours:,.1f} h"
        self._report(Finding(self._step, what, verdict, found.lines, rate, found.messages))

    def _report(self, finding: Finding) -> None:
        # Without components, no memory is accounted for.
        if not self.tracker.detectors():
            finding = replace(finding, resource=finding.resource.removesuffix(BEYOND_COMPONENTS))
        self._collects |= finding.verdict is TrendClass.collectable
        is_leak = finding.verdict is TrendClass.leak
        if is_leak or len(self.findings) < _MOST_FINDINGS:
            self.findings.append(finding)
        is_news = finding.verdict is not TrendClass.filling
        level = logging.ERROR if is_leak else logging.WARNING if is_news else logging.INFO
        self._log.log(level if self.accuses else logging.DEBUG, finding.text())
