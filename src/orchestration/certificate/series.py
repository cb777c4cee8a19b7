"""The memory series of a finished run, each with its judgement."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...utils.logging.writer import METRICS_FILE
from ...utils.memory.verdict import Judgement, Verdict, judge

Line = dict[str, float]
_MB = 1e6
_RESIDENT_TOLERANCES = (
    5  # resident memory moves by pages and by what the allocator keeps; in-use bytes do not
)


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing that must not grow, as the log lines tell it."""

    name: str
    unit: str
    read: Callable[[Line], float]
    scale: float
    """Bytes, or counts, in one unit."""

    tolerance: float
    """Growth over the judged samples that is none, in bytes or counts."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A series and what to think of it."""

    resource: Resource
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    """In the resource's unit."""

    judged_from: int
    """First step of the judged part."""

    judgement: Judgement

    @property
    def is_flat(self) -> bool:
        """Whether it has come to rest: it does not grow, or less and less."""
        return self.judgement.verdict in (Verdict.flat, Verdict.plateauing)

    @property
    def per_1000_steps(self) -> tuple[float, float, float]:
        """Slope and the ends of its interval, in the unit per 1,000 agent steps."""
        spacing = float(np.diff(self.steps).mean()) if len(self.steps) > 1 else 1.0
        factor = 1000 / spacing / self.resource.scale
        low, high = self.judgement.interval
        return self.judgement.slope_bytes_per_sample * factor, low * factor, high * factor


def resources(threshold_mb: float, on_cuda: bool) -> list[Resource]:
    """Return what is judged; the threshold is `memory.leak_threshold_mb`."""
    threshold = threshold_mb * _MB
    found = [
        Resource("host memory in use, not accounted for", "MB", _unaccounted("cpu"), _MB, threshold),
        Resource(
            "resident private memory",
            "MB",
            _tag("debug/cpu/rss_anon_mb"),
            _MB,
            _RESIDENT_TOLERANCES * threshold,
        ),
        Resource("shared memory", "MB", _tag("debug/cpu/rss_shmem_mb"), _MB, threshold),
        Resource("open files", "files", _tag("debug/cpu/open_files_count"), 1, 4),
        Resource("child processes", "processes", _tag("debug/cpu/children_count"), 1, 1),
    ]
    if on_cuda:
        found += [
            Resource("GPU memory in use", "MB", _tag("debug/gpu/alloc_mb"), _MB, threshold),
            Resource("GPU memory reserved", "MB", _tag("debug/gpu/reserved_mb"), _MB, 5 * threshold),
        ]
    return found


def judged_series(run_dir: Path, judged: list[Resource], settled_step: int) -> list[Judged]:
    """Return every resource's series over the run, judged after `settled_step`.

    A resource that the system does not count is left out.
    """
    lines = [json.loads(text) for text in (run_dir / METRICS_FILE).read_text().splitlines()]
    samples = [line for line in lines if "memory/cpu_in_use_mb" in line]
    found = []
    for resource in judged:
        try:
            values = np.array([resource.read(line) for line in samples])
        except KeyError:
            continue
        steps = np.array([line["step"] for line in samples], np.int64)
        after = values[steps > settled_step] * resource.scale
        found.append(Judged(resource, steps, values, settled_step, judge(after, resource.tolerance)))
    return found


def _tag(name: str) -> Callable[[Line], float]:
    return lambda line: line[name]


def _unaccounted(device: str) -> Callable[[Line], float]:
    return lambda line: line[f"memory/{device}_in_use_mb"] - line[f"memory/{device}_accounted_mb"]
