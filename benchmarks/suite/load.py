"""Measure the load from other processes during a timing. Times on a busy machine mean little."""

import time
from dataclasses import dataclass

import psutil

DISTURBED_CPU = 0.12
"""CPU-seconds per second used by other processes above which a time counts as disturbed."""

# Guest time is already included in user time.
_IDLE = ("idle", "iowait", "guest", "guest_nice")


@dataclass(frozen=True, slots=True)
class Load:
    """CPU time in seconds so far, of the machine and of this process with all its descendants."""

    clock: float
    machine: float
    own: float

    def others_since(self, before: "Load") -> float:
        """Return the CPU-seconds per second used by all other processes since `before`.

        The kernel counts in steps of 10 ms, so the result is coarse for intervals below half a second.
        """
        others = (self.machine - before.machine) - (self.own - before.own)
        return max(0.0, others / (self.clock - before.clock))


def read_load() -> Load:
    """Return the current counters. Time taken by the host (steal) counts as used by others."""
    times = psutil.cpu_times()
    machine = sum(value for name, value in times._asdict().items() if name not in _IDLE)
    return Load(time.perf_counter(), machine, _own_seconds())


def _own_seconds() -> float:
    """Return the CPU time of this process and of its live and ended descendants."""
    me = psutil.Process()
    total = _seconds(me)
    for child in me.children(recursive=True):
        try:
            total += _seconds(child)
        except psutil.NoSuchProcess:
            # The child has just ended, so its parent's counters now include its time.
            continue
    return total


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system + times.children_user + times.children_system
