"""Watches over the memory of a run while it runs: samples, verdicts, and the names of what grows."""

import gc
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..utils.memory.config import MemoryConfig, OnLeak
from ..utils.memory.culprits import Known, culprits, known
from ..utils.memory.detector import LeakDetector, confirm, hours_to_limit, judge_resident
from ..utils.memory.glibc import give_back_free_pages
from ..utils.memory.invariant import first_graph
from ..utils.memory.limits import memory_available_bytes
from ..utils.memory.paging import driver_paging_warning
from ..utils.memory.table import MemoryReport
from ..utils.memory.tracker import Component, MemoryTracker
from ..utils.memory.verdict import Judgement, Verdict
from .config import TrainingConfig
from .diagnostics import memory_counters
from .memory_resources import Resource, accounted_tag, watched_resources

LEAK_EXIT_CODE = 3
_LOG = logging.getLogger(__name__)
_BYTES_PER_MB = 1e6
_MOST_FINDINGS = 100
_SAMPLES_PER_GRAPH_CHECK = 8
_GARBAGE = "only the garbage collector frees it: objects in reference cycles"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that grows, or a graph that outlives its update."""

    step: int
    resource: str
    verdict: Verdict
    culprits: tuple[str, ...]
    growth: str = ""
    """How fast, in words."""

    def text(self) -> str:
        """Return the finding in words, one line for each culprit."""
        head = f"memory: {self.verdict.value} of {self.resource} at step {self.step:,}{self.growth}"
        return "\n  ".join([head, *self.culprits])


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
        self._before: Known | None = None
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
            self._before = None

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
        if self._before is None:
            self._begin(step, roots)
        self._clock = (self._clock[0], self._clock[1] + 1)
        self.tracker.sample(step, components, roots)
        held = {device: self.tracker.accounted_bytes(device) for device in self._devices}
        accounted = {accounted_tag(device): nbytes / _BYTES_PER_MB for device, nbytes in held.items()}
        tags = {**counters, **accounted}
        for resource in self._resources:
            value = resource.read(tags)
            if value is not None:
                self._detectors[resource.name].add(step, value)
        for resource in self._resources:
            if self._detectors[resource.name].alarm:
                self._judge(step, resource, roots)
        grown = self.tracker.alarms()
        if grown:
            lines = culprits(roots, step, self._before)
            self._report(Finding(step, f"the component {', '.join(grown)}", Verdict.leak, lines))
            self.tracker.restart(step, "finding")
        if self.config.check_interval and self._clock[1] % _SAMPLES_PER_GRAPH_CHECK == 1:
            self.check_graphs(step, roots)  # updates may be rare, and acting leaks too
        return accounted

    def check_graphs(self, step: int, roots: Mapping[str, Any]) -> None:
        """Look for an autograd graph that long-lived objects hold between updates; there must be none."""
        path = first_graph(roots)
        if path is not None and path not in self._shown_graphs:
            self._shown_graphs.add(path)
            lines = culprits(roots, step, None)
            self._report(Finding(step, "an autograd graph that outlives its update", Verdict.leak, lines))

    def _begin(self, step: int, roots: Mapping[str, Any]) -> None:
        """Remember what is held now, with which what grows will be compared."""
        # Garbage of before must not be freed during the judged window, nor counted as what grew in it.
        gc.collect()
        self._before = known(roots, step)
        self._clock = (time.monotonic(), 0)
        warning = driver_paging_warning()
        if warning is not None:
            _LOG.warning(warning)

    def _judge(self, step: int, resource: Resource, roots: Mapping[str, Any]) -> None:
        """Say what an alarm means, and who is to blame."""
        detector = self._detectors[resource.name]
        judgement = detector.judgement()
        if resource.kept_from is not None:
            held = self._detectors[resource.kept_from].judgement()
            tolerance = self._detectors[resource.kept_from].tolerance_bytes
            judgement = judge_resident(held, detector.values(), tolerance)
            if judgement.verdict is not Verdict.retention:
                return  # what live objects hold grows too, and that has an alarm of its own
            verdict = _confirm_retention(resource, judgement)
        else:
            now = _now(resource)
            verdict = confirm(now, judgement.rise_bytes, lambda: _now(resource))
        if verdict is Verdict.flat:
            detector.restart(step, "given back")
            return
        if verdict is Verdict.collectable:
            lines = (_GARBAGE,)
        elif resource.culprit is not None:
            lines = (resource.culprit,)
        else:
            lines = culprits(roots, step, self._before)
        self._report(Finding(step, resource.name, verdict, lines, self._growth(resource, judgement)))
        detector.restart(step, "finding")  # said once; said again if it goes on for another window

    def _growth(self, resource: Resource, judgement: Judgement) -> str:
        """Return how fast a resource grows, and when nothing is left of it, in words."""
        text = f", {judgement.slope_bytes_per_sample / resource.scale:+.3f} {resource.unit} per log interval"
        since, samples = self._clock
        if resource.unit == "MB" and samples:
            seconds = (time.monotonic() - since) / samples
            hours = hours_to_limit(judgement, seconds, _headroom_bytes(resource))
            if hours is not None:
                text += f"; at this rate nothing is left in {hours:,.1f} hours"
        return text

    def _report(self, finding: Finding) -> None:
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append(finding)
        _LOG.log(logging.ERROR if finding.verdict is Verdict.leak else logging.WARNING, finding.text())


def _confirm_retention(resource: Resource, judgement: Judgement) -> Verdict:
    """Return `flat` if the C allocator gives back half of the rise when asked to: it was only cached."""
    before = _now(resource)
    give_back_free_pages()
    is_cached = before - _now(resource) >= judgement.rise_bytes / 2
    return Verdict.flat if is_cached else judgement.verdict


def _now(resource: Resource) -> int:
    """Return the counter as it is at this moment, what is planned of it included."""
    return int(memory_counters()[resource.tag] * resource.scale)


def _headroom_bytes(resource: Resource) -> int:
    on_gpu = resource.tag.startswith("debug/gpu/")
    return torch.cuda.mem_get_info()[0] if on_gpu else memory_available_bytes()


def first_times(training: TrainingConfig, step: int) -> list[str]:
    """Return what this process will do for a first time after `step`; each leaves more memory in use."""
    joint = max(training.warmup_steps, training.learning_starts)
    due = {"first joint update": max(joint, step + 1)}
    if step < training.warmup_steps:
        due["first update"] = max(training.learning_starts, step + 1)
    intervals = {
        "first pictures": training.video_interval,
        "first evaluation": training.evaluation_interval,
        "first checkpoint": training.checkpoint_interval,
    }
    due |= {name: (step // interval + 1) * interval for name, interval in intervals.items() if interval}
    return [name for name, at in due.items() if at < training.total_timesteps]
