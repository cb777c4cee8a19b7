"""What a certificate says, as numbers: written as `certificate.json`."""

import json
import platform
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ... import __version__
from ...memory.counters.glibc import in_use_source
from ...memory.leaks.table import Finding
from ...memory.leaks.verdict import TrendClass
from .series import AT_REST, Judged
from .to_decide import ToDecide

CERTIFICATE_JSON = "certificate.json"


class Outcome(Enum):
    """What a certificate says of memory."""

    flat = "flat"
    not_flat = "not flat"
    undecided = "undecided"
    """Nothing grows for certain, but some resource's series is too short or too restless to call it flat."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The outcome of one certified run."""

    command: str
    run_dir: str
    fault: str | None
    steps: int
    updates: int
    device: str
    judged: list[Judged]
    findings: list[Finding]
    unaccounted_mb: float
    """Host memory in use that no component accounts for and that was not there before the run was built."""

    bound_mb: float
    """What `unaccounted_mb` must stay under."""

    instruments_fraction: float
    """The part of the run's time that all this watching took."""

    to_decide: ToDecide
    """The length of a run that would decide what this one left open."""

    @property
    def outcome(self) -> Outcome:
        """Whether every resource is flat, nothing was found, and the bound is kept; or not, or open."""
        verdicts = {each.judgement.verdict for each in self.judged}
        has_leak = any(finding.verdict is TrendClass.leak for finding in self.findings)
        if has_leak or self.unaccounted_mb > self.bound_mb or verdicts - {*AT_REST, TrendClass.undecided}:
            return Outcome.not_flat
        return Outcome.undecided if TrendClass.undecided in verdicts else Outcome.flat

    def lines(self) -> list[str]:
        """Return the outcome as text, one line a resource."""
        text = [f"{self.steps:,} agent steps, {self.updates:,} updates on {self.device}"]
        for each in self.judged:
            text.append(
                f"{each.resource.name}: {each.judgement.verdict.value}, {each.values[-1]:,.1f} "
                f"{each.resource.unit}, {each.growth_text()}"
            )
        text.append(
            f"host memory not accounted for: {self.unaccounted_mb:.1f} MB, bound {self.bound_mb:g} MB"
        )
        text.append(f"the memory instruments took {self.instruments_fraction:.2%} of the run's time")
        text += [finding.text() for finding in self.findings]
        return [*text, self.sentence()]

    def sentence(self) -> str:
        """Return the outcome, and of an undecided one what would decide it."""
        if self.outcome is Outcome.undecided:
            return f"UNDECIDED: {self.to_decide.text()}"
        return "PASSED: memory is flat" if self.outcome is Outcome.flat else "FAILED"

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it, the series included."""
        return {
            "outcome": self.outcome.value,
            "passed": self.outcome is Outcome.flat,
            "steps_to_decide": self.to_decide.steps if self.outcome is Outcome.undecided else None,
            "command": self.command,
            "fault": self.fault,
            "agent_steps": self.steps,
            "updates": self.updates,
            "unaccounted_mb": self.unaccounted_mb,
            "bound_mb": self.bound_mb,
            "instruments_fraction": self.instruments_fraction,
            "versions": versions(self.device),
            "resources": [_resource(each) for each in self.judged],
            "findings": [finding.text() for finding in self.findings],
        }

    def save(self, folder: Path) -> None:
        """Write `certificate.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CERTIFICATE_JSON).write_text(json.dumps(self.as_dict(), indent=1) + "\n")


def versions(device: str) -> dict[str, str]:
    """Return what the run ran on."""
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
    slope, low, high = each.per_1000_steps
    numbers = {"slope_per_1000_steps": slope, "slope_low": low, "slope_high": high}
    return {
        "name": each.resource.name,
        "unit": each.resource.unit,
        "verdict": each.judgement.verdict.value,
        **{name: float(value) if np.isfinite(value) else None for name, value in numbers.items()},
        "tolerance": each.resource.tolerance / each.resource.scale,
        "judged_from_step": each.judged_from,
        "steps": each.steps.tolist(),
        "values": each.values.round(6).tolist(),
    }
