"""Rows of memory: what an update needs at its peak, in a process of its own, and what it leaves behind."""

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
_UPDATES = 5  # of which the first is not counted: it also makes what stays
_FLOOR = "what the process held before, and parameters, gradients, moments and the batch"


def memory(bench: Bench, row: str, size: str) -> list[Result]:
    """Measure the peak of an update: resident memory on a CPU, allocated memory on a GPU.

    Allocations are counted in one more update: on a CPU blocks that torch asks of the C library, on a GPU
    calls of the caching allocator.
    """
    if bench.device.type == "cpu" and not _PEAK.exists():
        bench.notices.append(f"no {row}: this system has no {_PEAK}, which tells the peak")
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
    """Return what the child reports."""
    options = {
        "overrides": bench.overrides_of(*overrides),
        "threads": torch.get_num_threads(),
        "updates": _UPDATES,
    }
    command = [sys.executable, "-m", "benchmarks.suite.memory_child", json.dumps(options)]
    child = subprocess.run(command, capture_output=True, text=True)  # the profiler writes to stderr
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
