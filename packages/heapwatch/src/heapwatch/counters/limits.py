"""Read the host memory available to this process, limited by the machine and by control groups."""

import resource
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUP_ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
_V1_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2_FILES = ("memory.max", "memory.current", "inactive_file")
_ARENA_BYTES, _STACK_BYTES = 64 * 2**20, 8 * 2**20
# cgroup v1 reports "no limit" as almost 2**63.
_UNLIMITED = 2**60


def memory_limit_bytes() -> int:
    """Return the host memory of the machine, or its control group's lower limit, in bytes, without swap."""
    limit, _ = cgroup_memory(CGROUP_ROOT, text_of(MEMBERSHIP))
    physical = psutil.virtual_memory().total
    return physical if limit is None else min(physical, limit)


def memory_available_bytes() -> int:
    """Return the host memory, in bytes, that can be allocated without swapping, including droppable cache."""
    _, left = cgroup_memory(CGROUP_ROOT, text_of(MEMBERSHIP))
    available = psutil.virtual_memory().available
    return available if left is None else min(available, left)


def thread_bytes() -> int:
    """Return the address space, in bytes, that a thread reserves: its stack and a glibc malloc arena."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return (_STACK_BYTES if soft == resource.RLIM_INFINITY else soft) + _ARENA_BYTES


def cgroup_memory(root: Path, membership: str) -> tuple[int | None, int | None]:
    """Return the lowest limit and the least available memory, in bytes, over a process's control groups.

    Both are `None` if memory is not limited. The available memory is at least 0. As in container runtimes,
    used memory is the usage minus inactive file cache. The groups (v1 or v2) are mounted at `root`.
    `membership` is the text of /proc/self/cgroup.
    """
    limits, left = list[int](), list[int]()
    for folder, is_v1 in cgroup_folders(root, membership, "memory"):
        limit_file, usage_file, cache = _V1_FILES if is_v1 else _V2_FILES
        limit = _number(folder / limit_file)
        if limit is not None and limit < _UNLIMITED:
            statistics = dict(line.split() for line in text_of(folder / "memory.stat").splitlines())
            used = (_number(folder / usage_file) or 0) - int(statistics.get(cache, 0))
            limits.append(limit)
            left.append(max(0, limit - max(0, used)))
    return min(limits, default=None), min(left, default=None)


def cgroup_folders(root: Path, membership: str, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folder of each control group from this process up to the root, and whether it is v1.

    The groups are mounted at `root`. `membership` is the text of /proc/self/cgroup. `controller` is "cpu" or
    "memory".
    """
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root
        group = base / path.lstrip("/")
        # In a container the path may be the host's path, of which only some or no folders are mounted here.
        for folder in (group, *group.parents):
            yield folder, bool(controllers)
            if folder == base:
                break


def _number(file: Path) -> int | None:
    """Return the number in a control file, or `None` for "max" or a missing file."""
    text = text_of(file).strip()
    return int(text) if text.isdigit() else None


def text_of(file: Path) -> str:
    """Return the text of a file, or "" if it cannot be read."""
    try:
        return file.read_text()
    except OSError:
        return ""
