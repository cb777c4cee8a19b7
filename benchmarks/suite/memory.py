"""Rows for memory: the peak of an update in a separate process, and the memory that the update retains."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.suite.bench import Bench
from benchmarks.suite.compare import OURS
from benchmarks.suite.networks import PEER_SIZES
from benchmarks.suite.process import ProcessVariant
from benchmarks.suite.results import Floor, Result

_PEAK = Path("/proc/self/status")
# The first update is not counted, because it also allocates memory permanently.
_UPDATES = 5
_FLOOR = "what the process held before, and parameters, gradients, moments and the batch"


def memory(bench: Bench, row: str, size: str) -> list[Result]:
    """Measure the peak of an update: resident memory on a CPU, allocated memory on a GPU.

    One more update counts the allocations: blocks that torch requests from the C library on a CPU, and calls
    of the caching allocator on a GPU.
    """
    if bench.device.type == "cpu" and not _PEAK.exists():
        bench.notices.append(f"no {row}: this system has no {_PEAK} to read the peak from")
        return []
    report = _ours(bench, f"model={size}")
    floor = Floor(report["least_mb"], _FLOOR)
    in_use = report["in_use_bytes"]
    facts = {
        "peak_of_first_update_mb": report["peaks_mb"][0],
        "in_use_bytes_after_each_update": in_use,
        "host_allocations_per_update": report["host_allocations"],
        "cuda_allocator_calls_per_update": report["cuda"],
    }
    results = [_result(row, OURS, report["peaks_mb"], floor, facts)]
    for peer in bench.dreamers("update", decoder_free=True, size=PEER_SIZES[size]):
        results.append(_result(row, peer.name, _peer_peaks(peer), floor, peer.facts))
    return results


def _ours(bench: Bench, *overrides: str) -> dict[str, Any]:
    """Return the report of the child process."""
    options = {
        "overrides": bench.overrides_of(*overrides),
        "threads": torch.get_num_threads(),
        "updates": _UPDATES,
    }
    command = [sys.executable, "-m", "benchmarks.suite.memory_child", json.dumps(options)]
    # The profiler writes to stderr.
    child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode:
        raise RuntimeError(f"the process of the updates failed:\n{child.stderr}")
    return json.loads(child.stdout.splitlines()[-1])


def _peer_peaks(peer: ProcessVariant) -> list[float]:
    peaks = []
    for _ in range(_UPDATES):
        peer.block(0.0)
        peaks.append(peer.facts["peak_mb"])
    peer.close()
    return peaks


def _result(row: str, variant: str, peaks: list[float], floor: Floor, facts: dict[str, Any]) -> Result:
    steady = peaks[1:]
    return Result(
        row=row,
        variant=variant,
        unit="MB",
        median=median(steady),
        min=min(steady),
        max=max(steady),
        repetitions=len(steady),
        threads=torch.get_num_threads(),
        floor=floor,
        facts=facts,
    )
