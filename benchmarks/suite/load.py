"""What other processes did while something was timed: a time means little on a machine that is busy."""

import time
from dataclasses import dataclass

import psutil

DISTURBED_CPU = 0.12
"""CPU-seconds per second of other processes from which on a time counts as disturbed."""

_IDLE = ("idle", "iowait", "guest", "guest_nice")  # guest time is in user time already


@dataclass(frozen=True, slots=True)
class Load:
    """CPU time so far: of the whole machine, and of this process with all it started, in CPU-seconds."""

    clock: float
    machine: float
    own: float

    def others_since(self, before: "Load") -> float:
        """Return the CPU-seconds per second that all others used since `before`; never negative.

        The kernel counts in steps of 10 ms: below half a second the figure is coarse.
        """
        others = (self.machine - before.machine) - (self.own - before.own)
        return max(0.0, others / (self.clock - before.clock))


def read_load() -> Load:
    """Return the counters now. What the host took from this machine (steal) counts as used by others."""
    times = psutil.cpu_times()
    machine = sum(value for name, value in times._asdict().items() if name not in _IDLE)
    return Load(time.perf_counter(), machine, _own_seconds())


def _own_seconds() -> float:
    """Return the CPU time of this process, of the living ones below it, and of those that ended."""
    me = psutil.Process()
    total = _seconds(me)
    for child in me.children(recursive=True):
        try:
            total += _seconds(child)
        except psutil.NoSuchProcess:  # it ended just now: its parent's count has it
            continue
    return total


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system + times.children_user + times.children_system
