"""Watches over the memory of a run while it runs: samples, verdicts, and the names of what grows."""

import contextlib
import gc
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..config import MemoryConfig, OnLeak
from ..counters.glibc import give_back_free_pages, in_use_bytes, system_bytes
from ..counters.limits import memory_available_bytes
from ..counters.paging import driver_paging_warning
from ..counters.stats import memory_counters
from ..objects.culprits import ELSEWHERE, NATIVE, Culprits, Known, culprits, graph_culprits, known
from ..objects.invariant import first_graph
from .detector import LeakDetector, confirm, hours_to_limit, judge_resident
from .table import MemoryReport
from .tracker import Component, MemoryTracker
from .verdict import Judgement, Verdict
from .watched import Resource, accounted_tag, watched_resources

LEAK_EXIT_CODE = 3
_LOG = logging.getLogger(__name__)
_BYTES_PER_MB = 1e6
_MOST_FINDINGS = 100
_SAMPLES_PER_GRAPH_CHECK = 8
_PATIENCE = 480  # samples of unbroken growth, after which growth that has a name is a leak however slow it is
_GPU = "debug/gpu/"
_GARBAGE = "only the garbage collector frees it: objects in reference cycles"
_MAPPED = "no Python object holds it: memory that a library maps itself, past the C allocator"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that grows, or a graph that outlives its update."""

    step: int
    resource: str
    verdict: Verdict
    culprits: tuple[str, ...]
    growth: str = ""
    """How fast, as text."""

    def text(self) -> str:
        """Return the finding as text, one line for each culprit."""
        is_certain = self.verdict is not Verdict.growing
        what, remark = (self.verdict.value, "") if is_certain else ("growth", "; not yet a leak: it may end")
        head = f"memory: {what} of {self.resource} at step {self.step:,}{self.growth}{remark}"
        return "\n  ".join([head, *self.culprits])


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """What was held when something began to look like growth."""

    known: Known
    counters: Mapping[str, float]
    system_bytes: int | None


@dataclass(slots=True)
class _Growth:
    """What is known of a resource that grows."""

    found: Culprits = field(default_factory=lambda: Culprits((), is_named=False))
    judgements: int = 0
    reported: tuple[Verdict, bool] | None = None
    """The verdict that was reported, and whether with a name."""


class MemoryGuard:
    """Takes one sample of each counter per log interval and judges the series; says who holds what grew.

    The samples lie at one fixed phase of the loop, after the updates of an iteration. What components account
    for is subtracted, so a replay that fills is no growth. Keeps numbers and texts, no reference to a part.

    Args:
        config: Thresholds and intervals.
        events: What this run will do for a first time, by the names given to `event`; nothing is judged
            before all of it was done, because each first time takes memory that stays.
    """

    def __init__(self, config: MemoryConfig, events: Sequence[str] = ()) -> None:
        self.config = config
        self.tracker = MemoryTracker(config)
        self.findings: list[Finding] = []
        on_cuda = torch.cuda.is_available()
        self._devices = ("cpu", "cuda") if on_cuda else ("cpu",)
        self._resources = watched_resources(config.leak_threshold_mb, on_cuda)
        self._detectors = {
            resource.name: LeakDetector(resource.tolerance, wait_for=events) for resource in self._resources
        }
        self._awaited = set(events)
        self._has_begun = False
        self._suspicion: _Suspicion | None = None
        self._growths: dict[str, _Growth] = {}
        self._grown_components: dict[str, Verdict] = {}  # as reported
        self._own_bytes = 0  # what searches for culprits have left behind in host memory
        self._shown_graphs: set[str] = set()
        self._clock = (time.monotonic(), 0)  # at the last event, and the samples since
        self.gives_back = False
        """Whether the C allocator gives free pages back before each sample: resident memory is exact then."""

        self.settled_step = 0
        """Step of the last event; what comes after it is comparable."""

    @property
    def must_stop(self) -> bool:
        """Whether a leak is certain and `memory.on_leak=stop`."""
        return self.config.on_leak is OnLeak.stop and any(f.verdict is Verdict.leak for f in self.findings)

    def event(self, step: int, name: str) -> None:
        """Begin anew after a first update, evaluation, checkpoint: more memory is normal from here."""
        if name in self._awaited:
            self._awaited.remove(name)
            for detector in self._detectors.values():
                detector.restart(step, name)
            self.tracker.restart(step, name)
            self.settled_step = step
            self._has_begun, self._suspicion = False, None
            self._forget()

    def report(self, step: int) -> MemoryReport | None:
        """Return what holds what, None if nothing is tracked."""
        return self.tracker.report(step) if self.config.tracking_enabled else None

    def counters(self) -> dict[str, float]:
        """Return what the process and its GPU hold now, by the tag of a log line."""
        if self.gives_back:
            give_back_free_pages()
        return memory_counters()

    def sample(
        self,
        step: int,
        counters: Mapping[str, float],
        roots: Mapping[str, Any],
        components: Mapping[str, Component],
    ) -> dict[str, float]:
        """Take a sample of everything, at the loop's fixed phase; return what to log besides the counters.

        Cost: 3 us for each object of the run, some ms; every eighth sample 0.2 ms more for each judgement.
        """
        if not self.config.tracking_enabled:
            return {}
        if not self._has_begun:
            self._begin()
        self._clock = (self._clock[0], self._clock[1] + 1)
        is_judged_anew = self.tracker.sample(step, components, roots)
        held = {device: self.tracker.accounted_bytes(device) for device in self._devices}
        accounted = {accounted_tag(device): nbytes / _BYTES_PER_MB for device, nbytes in held.items()}
        accounted[accounted_tag("cpu")] += self._own_bytes / _BYTES_PER_MB
        tags = {**counters, **accounted}
        for resource in self._resources:
            value = resource.read(tags)
            if value is not None:
                is_judged_anew |= self._detectors[resource.name].add(step, value)
        if is_judged_anew:
            self._judge_all(step, roots)
        if self.config.check_interval and self._clock[1] % _SAMPLES_PER_GRAPH_CHECK == 1:
            self.check_graphs(step, roots)  # updates may be rare, and acting leaks too
        return accounted

    def check_graphs(self, step: int, roots: Mapping[str, Any]) -> None:
        """Look for an autograd graph that long-lived objects hold between updates; there must be none."""
        path = first_graph(roots)
        if path is not None and path not in self._shown_graphs:
            self._shown_graphs.add(path)
            lines = graph_culprits(roots)
            self._report(Finding(step, "an autograd graph that outlives its update", Verdict.leak, lines))

    def _begin(self) -> None:
        """Start the clock of the samples that are comparable."""
        # Garbage from earlier must not be freed during the judged window, nor counted as what grew in it.
        gc.collect()
        self._has_begun, self._clock = True, (time.monotonic(), 0)
        warning = driver_paging_warning()
        if warning is not None:
            _LOG.warning(warning)

    def _judge_all(self, step: int, roots: Mapping[str, Any]) -> None:
        """Look at every resource and component that may grow."""
        suspects = [d for d in (*self._detectors.values(), *self.tracker.detectors()) if d.is_suspect]
        if not suspects:
            with self._uncounted():
                self._suspicion = None
            self._forget()
            return
        if self._suspicion is None:
            if not self._report_garbage(
                step
            ):  # what grows is named later: by comparison with what is held now
                self._suspect(step, roots, is_whole=False)
            return
        for resource in self._resources:
            detector = self._detectors[resource.name]
            if not detector.grows:
                self._growths.pop(resource.name, None)
            elif detector.alarm or self._is_urgent(resource, detector):
                self._judge(step, resource, roots)
        self._judge_components(step, roots)

    def _forget(self) -> None:
        """Forget what grew."""
        self._growths.clear()
        self._grown_components.clear()

    def _report_garbage(self, step: int) -> bool:
        """Report each suspect that a collection explains; return whether there is one.

        Now, and not with an alarm: a search for culprits collects too, and nothing would be left to see.
        """
        found = False
        for resource in self._resources:
            detector = self._detectors[resource.name]
            if detector.is_suspect and resource.culprit is None:
                judgement = detector.judgement()
                verdict = confirm(_now(resource), judgement.rise_bytes, lambda each=resource: _now(each))
                if verdict is Verdict.collectable:
                    rate = self._rate(resource, judgement)
                    self._report(Finding(step, resource.name, verdict, (_GARBAGE,), rate))
                    detector.restart(step, "finding")
                    found = True
        return found

    def _suspect(self, step: int, roots: Mapping[str, Any], is_whole: bool) -> None:
        """Remember what is held now, with which what grows will be compared."""
        with self._uncounted():
            held = known(roots, step, is_whole)
        give_back_free_pages()  # as before an alarm about resident memory
        self._suspicion = _Suspicion(held, memory_counters(), system_bytes())

    @contextlib.contextmanager
    def _uncounted(self) -> Iterator[None]:
        """Account for what a search leaves behind in memory."""
        before = in_use_bytes()
        yield
        self._own_bytes += in_use_bytes() - before

    def _judge(self, step: int, resource: Resource, roots: Mapping[str, Any]) -> None:
        """Say what an alarm means, and who is to blame."""
        detector = self._detectors[resource.name]
        judgement = detector.judgement()
        growth = self._growths.get(resource.name)
        if growth is None:
            verdict, lines = self._confirmed(resource, judgement)
            if verdict is not Verdict.growing:
                if verdict is not Verdict.flat:
                    rate = self._rate(resource, judgement)
                    self._report(Finding(step, resource.name, verdict, lines, rate))
                detector.restart(step, "given back" if verdict is Verdict.flat else "finding")
                return
            growth = self._growths[resource.name] = _Growth(Culprits(lines, is_named=bool(lines)))
        growth.judgements += 1
        is_power_of_two = growth.judgements & (growth.judgements - 1) == 0
        if not growth.found.is_named and is_power_of_two:  # a search takes seconds
            with self._uncounted():
                growth.found = self._culprits(step, resource, roots)
            if ELSEWHERE in growth.found.lines:  # the next judgement can tell
                self._suspect(step, roots, is_whole=True)
                growth.judgements = 0
                return
        is_leak = self._is_certain(resource, detector, growth.found.is_named)
        if is_leak and growth.reported == (Verdict.growing, True) and resource.culprit is None:
            with self._uncounted():  # far more has grown since the name was found
                growth.found = self._culprits(step, resource, roots)
        seen = (Verdict.leak if is_leak else Verdict.growing, growth.found.is_named)
        if seen != growth.reported:
            growth.reported = seen
            rate = self._rate(resource, judgement)
            self._report(Finding(step, resource.name, seen[0], growth.found.lines, rate))

    def _confirmed(self, resource: Resource, judgement: Judgement) -> tuple[Verdict, tuple[str, ...]]:
        """Return what an alarm is, and who is to blame where no search is needed for that."""
        if resource.kept_from is None:
            verdict = confirm(_now(resource), judgement.rise_bytes, lambda: _now(resource))
            if verdict is Verdict.collectable:
                return verdict, (_GARBAGE,)
            return verdict, (resource.culprit,) if resource.culprit is not None else ()
        held = self._detectors[resource.kept_from]
        values = self._detectors[resource.name].values()
        if judge_resident(held.judgement(), values, held.tolerance_bytes).verdict is not Verdict.retention:
            return Verdict.flat, ()  # what live objects hold grows too, and that has an alarm of its own
        if _is_only_cached(resource, judgement):
            return Verdict.flat, ()
        if self._is_mapped_elsewhere(resource):
            return Verdict.growing, ()
        return Verdict.retention, (resource.culprit or "",)

    def _is_mapped_elsewhere(self, resource: Resource) -> bool:
        """Return whether resident memory grew that the C allocator never had: maps of Python or a library."""
        now = system_bytes()
        if self._suspicion is None or self._suspicion.system_bytes is None or now is None:
            return False
        return now - self._suspicion.system_bytes < self._rise(resource) / 2

    def _culprits(self, step: int, resource: Resource, roots: Mapping[str, Any]) -> Culprits:
        """Return who holds what grew since the suspicion."""
        assert self._suspicion is not None
        device = "cuda" if resource.tag.startswith(_GPU) else "cpu"
        found = culprits(roots, step, self._suspicion.known, self._rise(resource), device)
        is_native = any(line.startswith(NATIVE) for line in found.lines)
        return replace(found, lines=(_MAPPED,)) if resource.kept_from and is_native else found

    def _rise(self, resource: Resource) -> float:
        """Return by how much a counter has risen since the suspicion."""
        assert self._suspicion is not None
        return _now(resource) - self._suspicion.counters[resource.tag] * resource.scale

    def _judge_components(self, step: int, roots: Mapping[str, Any]) -> None:
        """Report parts of the run that hold more than planned; they are named by what they are."""
        assert self._suspicion is not None
        grown = self.tracker.alarms()
        reported, self._grown_components = self._grown_components, {}
        for name, detector in grown.items():
            device = self.tracker.device_kind(name)
            resource = next(
                each for each in self._resources if each.tag.startswith(_GPU) is (device == "cuda")
            )
            is_leak = self._is_certain(resource, detector, is_named=True)
            verdict = self._grown_components[name] = Verdict.leak if is_leak else Verdict.growing
            if reported.get(name) is not verdict:
                with self._uncounted():
                    found = culprits(roots, step, self._suspicion.known, 0.0, device)
                lines = found.lines if found.is_named else ()
                rate = self._rate(resource, detector.judgement())
                self._report(Finding(step, f"the component {name}", verdict, lines, rate))

    def _is_certain(self, resource: Resource, detector: LeakDetector, is_named: bool) -> bool:
        """Return whether growth is a leak: it is urgent, or has a name and has lasted long, or is no memory.

        A cache that fills grows as a leak does, and nobody knows how long; the best guess is as long again
        as it has lasted. So growth is urgent once it has taken `memory.leak_share` of what is left.
        """
        is_patient = is_named and detector.growing_samples >= _PATIENCE
        return resource.culprit_is_certain or is_patient or self._is_urgent(resource, detector)

    def _is_urgent(self, resource: Resource, detector: LeakDetector) -> bool:
        taken = detector.judgement().slope_bytes_per_sample * detector.growing_samples
        return resource.unit == "MB" and taken >= self.config.leak_share * _headroom_bytes(resource)

    def _rate(self, resource: Resource, judgement: Judgement) -> str:
        """Return how fast a resource grows, and when nothing is left of it, as text."""
        text = f", {judgement.slope_bytes_per_sample / resource.scale:+.3f} {resource.unit} per log interval"
        since, samples = self._clock
        if resource.unit == "MB" and samples:
            seconds = (time.monotonic() - since) / samples
            hours = hours_to_limit(judgement, seconds, _headroom_bytes(resource))
            if hours is not None:
                text += f"; at this rate nothing is left in {hours:,.1f} hours"
        return text

    def _report(self, finding: Finding) -> None:
        if finding.verdict is Verdict.leak or len(self.findings) < _MOST_FINDINGS:
            self.findings.append(finding)
        _LOG.log(logging.ERROR if finding.verdict is Verdict.leak else logging.WARNING, finding.text())


def _is_only_cached(resource: Resource, judgement: Judgement) -> bool:
    """Return whether the C allocator gives back half of the rise when asked to."""
    before = _now(resource)
    give_back_free_pages()
    return before - _now(resource) >= judgement.rise_bytes / 2


def _now(resource: Resource) -> int:
    """Return the counter as it is at this moment, what is planned of it included."""
    return int(memory_counters()[resource.tag] * resource.scale)


def _headroom_bytes(resource: Resource) -> int:
    on_gpu = resource.tag.startswith(_GPU)
    return torch.cuda.mem_get_info()[0] if on_gpu else memory_available_bytes()
