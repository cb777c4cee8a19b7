"""Count the CPUs available to this process: its affinity, further limited by control groups."""

import os
from collections.abc import Iterator
from pathlib import Path

from heapwatch.counters.limits import CGROUP_ROOT, MEMBERSHIP, cgroup_folders, text_of


def usable_cpus() -> int:
    """Return the number of CPUs available to this process, at least 1. A quota of 2.5 CPUs counts as 2."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([allowed, *cgroup_quotas(CGROUP_ROOT, text_of(MEMBERSHIP))])))


def cgroup_quotas(root: Path, membership: str) -> Iterator[float]:
    """Yield the CPU quota, in CPUs, of each limited control group from this process up to the root.

    The groups, v1 or v2, are mounted at `root`; `membership` is the text of /proc/self/cgroup.
    """
    for folder, is_v1 in cgroup_folders(root, membership, "cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_v1 else ("cpu.max",)
        words = " ".join(text_of(folder / name) for name in names).split()
        # Without a limit v2 writes "max", and v1 writes -1.
        if len(words) == 2 and all(map(str.isdigit, words)):
            yield int(words[0]) / int(words[1])
