"""Memory certificate of a run, as text, JSON and a self-contained HTML page."""

import json
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from heapwatch.counters.glibc import in_use_source
from heapwatch.leaks.table import Finding
from heapwatch.leaks.verdict import TrendClass
from matplotlib.figure import Figure

from .. import __version__
from ..utils.html_page import cards, document, image, png, table
from ..utils.units import count_text
from .judged import AT_REST, Judged, ToDecide

CERTIFICATE_JSON, CERTIFICATE_HTML = "certificate.json", "certificate.html"


class Outcome(Enum):
    """Verdict of a certificate on memory."""

    flat = "flat"
    not_flat = "not flat"
    undecided = "undecided"
    """Growth is not certain, but at least one series is too short or too noisy to count as flat."""

    @staticmethod
    def worst(outcomes: Iterable["Outcome"]) -> "Outcome":
        """Return the worst outcome: not flat, then undecided, then flat."""
        return max(outcomes, key=(Outcome.flat, Outcome.undecided, Outcome.not_flat).index)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The outcome of one certified run."""

    command: str
    run_dir: str
    fault: str | None
    steps: int

    cut_short: str
    """Why the run ended before its last step, as a sentence, or "". Such a run is not certified as flat."""

    updates: int
    device: str
    judged: list[Judged]
    findings: list[Finding]

    unaccounted_mb: float
    """Host memory in use beyond components and start-up, in MB. At most `bound_mb` is allowed."""

    bound_mb: float
    instruments_fraction: float
    """Fraction of the run's time spent in the memory instruments."""

    to_decide: ToDecide

    others: tuple[Outcome, ...] = ()
    """Outcomes of all other ranks, set only in the certificate of rank 0."""

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of all ranks."""
        return Outcome.worst([self._own, *self.others])

    @property
    def _own(self) -> Outcome:
        """This process's outcome, given its resources, leaks and the bound on unaccounted memory."""
        verdicts = {each.judgement.verdict for each in self.judged}
        has_leak = any(finding.verdict is TrendClass.leak for finding in self.findings)
        if has_leak or self.unaccounted_mb > self.bound_mb or verdicts - {*AT_REST, TrendClass.undecided}:
            return Outcome.not_flat
        is_undecided = self.cut_short or TrendClass.undecided in verdicts
        return Outcome.undecided if is_undecided else Outcome.flat

    def lines(self) -> list[str]:
        """Return the outcome as text, with one line per resource."""
        return [
            f"{count_text(self.steps, 'agent step')}, {count_text(self.updates, 'update')} on {self.device}",
            *(f"{each.resource.name}: {', '.join(each.texts())}" for each in self.judged),
            f"unaccounted host memory: {self.unaccounted_mb:.1f} MB, bound {self.bound_mb:g} MB",
            f"the memory instruments took {self.instruments_fraction:.2%} of the run's time",
            *(finding.text() for finding in self.findings),
            *self._ranks(),
            self.sentence(),
        ]

    def _ranks(self) -> list[str]:
        """Return one line per rank with its outcome, or an empty list for a single process."""
        found = enumerate([self._own, *self.others])
        return [f"rank {index}: {outcome.value}" for index, outcome in found if self.others]

    def sentence(self) -> str:
        """Return the outcome as a sentence. If it is undecided, include the run that would decide it."""
        if self.outcome is Outcome.undecided:
            return f"UNDECIDED: {self.cut_short or self.to_decide.text()}"
        return "PASSED: memory is flat" if self.outcome is Outcome.flat else "FAILED"

    def as_dict(self) -> dict[str, Any]:
        """Return the certificate, including the series, as JSON values."""
        numbers = ("updates", "unaccounted_mb", "bound_mb", "instruments_fraction")
        return {
            "outcome": self.outcome.value,
            "outcomes_of_ranks": [outcome.value for outcome in (self._own, *self.others)],
            "passed": self.outcome is Outcome.flat,
            "steps_to_decide": self.to_decide.steps if self.outcome is Outcome.undecided else None,
            "agent_steps": self.steps,
            **{name: getattr(self, name) for name in ("command", "fault", "cut_short", *numbers)},
            "versions": versions(self.device),
            "resources": [_resource(each) for each in self.judged],
            "findings": [finding.text() for finding in self.findings],
        }

    def save(self, folder: Path) -> None:
        """Write `certificate.json` and the self-contained page `certificate.html`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CERTIFICATE_JSON).write_text(json.dumps(self.as_dict(), indent=1) + "\n")
        (folder / CERTIFICATE_HTML).write_text(_page(self), encoding="utf-8")


def versions(device: str) -> dict[str, str]:
    """Return the versions of the software and hardware in use."""
    return {
        "reverie": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.platform(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "in_use_counter": in_use_source(),
    }


def _resource(each: Judged) -> dict[str, Any]:
    numbers = zip(("slope_per_1000_steps", "slope_low", "slope_high"), each.per_1000_steps, strict=True)
    return {
        "name": each.resource.name,
        "unit": each.resource.unit,
        "verdict": each.judgement.verdict.value,
        **{name: float(value) if np.isfinite(value) else None for name, value in numbers},
        "tolerance": each.resource.tolerance / each.resource.scale,
        "judged_from_step": each.judged_from,
        "steps": each.steps.tolist(),
        "values": each.values.round(6).tolist(),
    }


_COLOURS = {Outcome.flat: "#2a7d3f", Outcome.not_flat: "#b3261e", Outcome.undecided: "#6b6b6b"}


def _page(certificate: Certificate) -> str:
    outcome = certificate.outcome
    facts = {
        "agent steps": f"{certificate.steps:,}",
        "updates": f"{certificate.updates:,}",
        "fault": certificate.fault or "none",
        f"MB not accounted for (bound {certificate.bound_mb:g})": f"{certificate.unaccounted_mb:.1f}",
        "of the time in memory instruments": f"{certificate.instruments_fraction:.2%}",
    }
    rows = [[each.resource.name, *each.texts()] for each in certificate.judged]
    about = [[escape(name), escape(text)] for name, text in versions(certificate.device).items()]
    body = [
        f"<h1>Memory certificate: <span style='background: {_COLOURS[outcome]}'>{outcome.value}</span></h1>",
        f"<p>{escape(certificate.sentence())}</p>" if outcome is Outcome.undecided else "",
        cards(facts),
        *(f"<p>{escape(line)}</p>" for line in certificate._ranks()),
        *(f"<pre>{escape(finding.text())}</pre>" for finding in certificate.findings),
        table(["resource", "verdict", "last value", "growth (96.9 % interval)"], rows),
        *(image(_plot(each), each.resource.name) for each in certificate.judged),
        f"<h2>Command</h2><pre>{escape(certificate.command)}</pre>",
        table(["part", "version"], about),
    ]
    return document("Memory certificate", body)


def _plot(each: Judged) -> bytes:
    """Plot the series as a PNG. The part that was not judged has a gray background."""
    figure = Figure(figsize=(9, 2.2), layout="constrained")
    axis = figure.add_subplot()
    axis.plot(each.steps, each.values, color="#1f5fa8", linewidth=1)
    if len(each.steps):
        axis.axvspan(each.steps[0], max(each.steps[0], each.judged_from), color="#eee")
    low, high = each.values.min(), each.values.max()
    margin = max(0.1 * (high - low), each.resource.tolerance / each.resource.scale)
    axis.set_ylim(low - margin, high + margin)
    axis.set_title(f"{each.resource.name}, {each.resource.unit}", fontsize=10, loc="left")
    axis.set_xlabel("agent steps", fontsize=9)
    axis.ticklabel_format(useOffset=False, style="plain")
    return png(figure)
