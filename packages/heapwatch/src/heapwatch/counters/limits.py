"""Read how much host memory this process may use: the machine's, or less where a control group says so."""

import resource
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUP_ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
_V1_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2_FILES = ("memory.max", "memory.current", "inactive_file")
_ARENA_BYTES, _STACK_BYTES = 64 * 2**20, 8 * 2**20
_UNLIMITED = 2**60  # v1 writes "no limit" as nearly 2**63


def memory_limit_bytes() -> int:
    """Return the host memory, in bytes, of the machine, or less if a control group limits it; no swap."""
    limit, _ = cgroup_memory(CGROUP_ROOT, text_of(MEMBERSHIP))
    physical = psutil.virtual_memory().total
    return physical if limit is None else min(physical, limit)


def memory_available_bytes() -> int:
    """Return the host memory, in bytes, that can be taken now without swapping; droppable cache counts."""
    _, left = cgroup_memory(CGROUP_ROOT, text_of(MEMBERSHIP))
    available = psutil.virtual_memory().available
    return available if left is None else min(available, left)


def thread_bytes() -> int:
    """Return the address space, in bytes, that a thread reserves: its stack and a malloc arena of glibc."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return (_STACK_BYTES if soft == resource.RLIM_INFINITY else soft) + _ARENA_BYTES


def cgroup_memory(root: Path, membership: str) -> tuple[int | None, int | None]:
    """Return the lowest memory limit over a process's control groups, and the least that is left, in bytes.

    Both are None without a limit; what is left is at least 0. Used is, as container runtimes report it, usage
    less inactive file cache. The groups, v1 or v2, are mounted at `root`; `membership` is the text of
    /proc/self/cgroup.
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
    """Yield the folder of every control group from this process up to the root, and whether it is of v1.

    The groups are mounted at `root`; `membership` is the text of /proc/self/cgroup. `controller` is "cpu" or
    "memory".
    """
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root
        group = base / path.lstrip("/")
        # In a container the path may be the host's: of it only some folders, or none, are mounted here.
        for folder in (group, *group.parents):
            yield folder, bool(controllers)
            if folder == base:
                break


def _number(file: Path) -> int | None:
    """Return the number a control file holds; None for "max", and where there is no such file."""
    text = text_of(file).strip()
    return int(text) if text.isdigit() else None


def text_of(file: Path) -> str:
    """Return the text of a file, empty where there is none."""
    try:
        return file.read_text()
    except OSError:
        return ""
