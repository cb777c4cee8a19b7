"""Watches over the memory of a run while it runs: samples, verdicts, and the names of what grows."""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..utils.memory.config import MemoryConfig, OnLeak
from ..utils.memory.culprits import Holdings, culprits, holdings
from ..utils.memory.detector import LeakDetector, confirm
from ..utils.memory.glibc import in_use_bytes
from ..utils.memory.invariant import first_graph
from ..utils.memory.process import live_children_count, open_files_count, resident_bytes_by_kind
from ..utils.memory.table import MemoryReport
from ..utils.memory.tracker import Component, MemoryTracker
from ..utils.memory.verdict import Judgement, Verdict

LEAK_EXIT_CODE = 3
_LOG = logging.getLogger(__name__)
_BYTES_PER_MB = 1e6
_MOST_FINDINGS = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that grows, or a graph that outlives its update."""

    step: int
    resource: str
    verdict: Verdict
    judgement: Judgement | None
    culprits: tuple[str, ...]

    def text(self) -> str:
        """Return the finding in words, one line for each culprit."""
        head = f"memory: {self.verdict.value} of {self.resource} at step {self.step:,}"
        if self.judgement is not None:
            per_sample = self.judgement.slope_bytes_per_sample / _BYTES_PER_MB
            head += f", {per_sample:+.3f} MB per log interval"
        return "\n  ".join([head, *self.culprits])


@dataclass(frozen=True, slots=True)
class Resource:
    """One counter that must not grow."""

    read: Callable[[], float]
    tolerance: float
    culprit: str | None = None
    """What to name where no path of Python leads to it; None asks who holds what."""


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
        threshold = config.leak_threshold_mb * _BYTES_PER_MB
        self._resources = {
            "host memory in use": Resource(in_use_bytes, threshold),
            "shared memory": Resource(_shared_bytes, threshold, "shared memory: blocks that are not closed"),
            "open files": Resource(open_files_count, 4, "open files: descriptors that are not closed"),
            "child processes": Resource(
                live_children_count, 1, "child processes: workers that are not stopped"
            ),
        }
        if torch.cuda.is_available():
            self._resources["GPU memory in use"] = Resource(torch.cuda.memory_allocated, threshold)
        self._detectors = {
            name: LeakDetector(resource.tolerance, wait_for=events)
            for name, resource in self._resources.items()
        }
        self._awaited = set(events)
        self._before: Holdings | None = None
        self._shown_graphs: set[str] = set()
        self.settled_step = 0
        """Step of the last event; what comes after it is comparable."""

        self.last_unaccounted_bytes = 0
        """Host memory in use at the last sample, less what components account for."""

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

    def sample(
        self, step: int, roots: Mapping[str, Any], components: Mapping[str, Component]
    ) -> dict[str, float]:
        """Take a sample of everything, at the loop's fixed phase; return what to log, by tag."""
        if not self.config.tracking_enabled:
            return {}
        if self._before is None:
            # Garbage of before must not be freed during the judged window, nor counted as what grew in it.
            gc.collect()
            self._before = holdings(roots)
        values = {name: float(resource.read()) for name, resource in self._resources.items()}
        self.tracker.sample(step, components, roots)
        tags = {}
        for name, device in (("host memory in use", "cpu"), ("GPU memory in use", "cuda")):
            if name in values:
                accounted = self.tracker.accounted_bytes(device)
                tags[f"memory/{device}_in_use_mb"] = values[name] / _BYTES_PER_MB
                tags[f"memory/{device}_accounted_mb"] = accounted / _BYTES_PER_MB
                values[name] -= accounted
        self.last_unaccounted_bytes = int(values["host memory in use"])
        for name, value in values.items():
            detector = self._detectors[name]
            detector.add(step, value)
            if detector.alarm:
                self._find(step, name, detector, roots)
        for name in self.tracker.alarms():
            self._find_component(step, name, roots)
        return tags

    def check_graphs(self, step: int, roots: Mapping[str, Any]) -> None:
        """Look for an autograd graph that long-lived objects hold between updates; there must be none."""
        path = first_graph(roots)
        if path is not None and path not in self._shown_graphs:
            self._shown_graphs.add(path)
            lines = culprits(roots, None)
            self._report(
                Finding(step, "an autograd graph that outlives its update", Verdict.leak, None, lines)
            )

    def _find(self, step: int, name: str, detector: LeakDetector, roots: Mapping[str, Any]) -> None:
        resource, judgement = self._resources[name], detector.judgement()
        verdict = confirm(int(resource.read()), judgement.rise_bytes, lambda: int(resource.read()))
        if verdict is Verdict.collectable:
            lines = ("only the garbage collector frees it: objects in reference cycles",)
        elif resource.culprit is not None:
            lines = (resource.culprit,)
        else:
            lines = culprits(roots, self._before)
        self._report(Finding(step, name, verdict, judgement, lines))
        detector.restart(step, "finding")  # said once; said again if it goes on for another window

    def _find_component(self, step: int, name: str, roots: Mapping[str, Any]) -> None:
        """Report a part of the run that grows beyond its plan."""
        lines = culprits(roots, self._before)
        self._report(Finding(step, f"the component {name}", Verdict.leak, None, lines))
        self.tracker.restart(step, "finding")

    def _report(self, finding: Finding) -> None:
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append(finding)
        _LOG.log(logging.ERROR if finding.verdict is Verdict.leak else logging.WARNING, finding.text())


def _shared_bytes() -> float:
    return float(resident_bytes_by_kind().get("rss_shmem", 0))
