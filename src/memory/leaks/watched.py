"""The counters that must not grow, as log lines tell them: the guard watches, the certificate judges them."""

from collections.abc import Mapping
from dataclasses import dataclass

from .detector import resident_tolerance

_MB = 1e6


@dataclass(frozen=True, slots=True)
class Resource:
    """One counter."""

    name: str
    tag: str
    """Where a log line has it."""

    tolerance: float
    """Growth over the judged samples that is none, in bytes or counts."""

    unit: str = "MB"
    scale: float = _MB
    """Bytes, or counts, in one unit."""

    planned_tag: str | None = None
    """Where a log line has what is planned of it, which is subtracted."""

    kept_from: str | None = None
    """The resource of which live objects hold this; while that is flat, growth is the allocator's."""

    culprit: str | None = None
    """What to name where no path of Python leads to it; None asks who holds what."""

    @property
    def culprit_is_certain(self) -> bool:
        """Whether steady growth is a leak at once: nothing fills up with files, processes, shared memory."""
        return self.culprit is not None and self.kept_from is None

    def read(self, tags: Mapping[str, float]) -> float | None:
        """Return its value in bytes or counts, less what is planned; None where the system does not count."""
        if self.tag not in tags:
            return None
        planned = 0.0 if self.planned_tag is None else tags[self.planned_tag]
        return (tags[self.tag] - planned) * self.scale


def watched_resources(threshold_mb: float, on_cuda: bool) -> list[Resource]:
    """Return what must not grow; the threshold is `memory.leak_threshold_mb`."""
    threshold = threshold_mb * _MB
    host = Resource(
        "host memory in use, not accounted for",
        "debug/cpu/in_use_mb",
        threshold,
        planned_tag=accounted_tag("cpu"),
    )
    resident = Resource(
        "resident private memory, not accounted for",
        "debug/cpu/rss_anon_mb",
        resident_tolerance(threshold),
        planned_tag=accounted_tag("cpu"),
        kept_from=host.name,
        culprit="pages that the C allocator keeps of what was freed",
    )
    shared = Resource(
        "shared memory",
        "debug/cpu/rss_shmem_mb",
        threshold,
        culprit="shared memory: blocks that are not closed",
    )
    files = Resource(
        "open files",
        "debug/cpu/open_files_count",
        4,
        "files",
        1,
        culprit="open files: descriptors that are not closed",
    )
    children = Resource(
        "child processes",
        "debug/cpu/children_count",
        1,
        "processes",
        1,
        culprit="child processes: workers that are not stopped",
    )
    found = [host, resident, shared, files, children]
    if on_cuda:
        gpu = Resource(
            "GPU memory in use, not accounted for",
            "debug/gpu/alloc_mb",
            threshold,
            planned_tag=accounted_tag("cuda"),
        )
        reserved = Resource(
            "GPU memory reserved, not accounted for",
            "debug/gpu/reserved_mb",
            resident_tolerance(threshold),
            planned_tag=accounted_tag("cuda"),
            kept_from=gpu.name,
            culprit="segments that PyTorch's allocator keeps of what was freed",
        )
        found += [gpu, reserved]
    return found


def accounted_tag(device: str) -> str:
    """Return where a log line has the bytes, in MB, that the run's components hold on `cpu` or `cuda`."""
    return f"memory/{device}_accounted_mb"
