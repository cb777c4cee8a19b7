"""Read how many CPUs this process may use: its affinity, or less where a control group limits CPU time."""

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use, at least 1; a quota of 2.5 CPUs counts as 2."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    membership = _MEMBERSHIP.read_text() if _MEMBERSHIP.exists() else ""
    return max(1, int(min([allowed, *cgroup_quotas(_CGROUP_ROOT, membership)])))


def cgroup_quotas(root: Path, membership: str) -> Iterator[float]:
    """Yield the CPU quota, in CPUs, of every limited control group from this process up to the root.

    The groups, v1 or v2, are mounted at `root`; `membership` is the text of /proc/self/cgroup.
    """
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        group = base / path.lstrip("/")
        # In a container the path may be the host's, so groups that are not mounted here are skipped.
        for folder in (group, *group.parents):
            words = " ".join(_text(folder / name) for name in names).split()
            # Without a limit v2 writes "max", and v1 writes -1.
            if len(words) == 2 and all(map(str.isdigit, words)):
                yield int(words[0]) / int(words[1])
            if folder == base:
                break


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
