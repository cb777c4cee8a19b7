"""Define the counters that must not grow; the guard watches them, the certificate judges them."""

from collections.abc import Mapping
from dataclasses import dataclass

from .detector import resident_tolerance

_MB = 1e6


@dataclass(frozen=True, slots=True)
class WatchedCounter:
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
    """The counter of what live objects hold of this; while that is flat, growth is the allocator's."""
    source: str | None = None
    """What to name where no path of Python leads to it; None to search for what holds it."""

    @property
    def source_is_certain(self) -> bool:
        """Whether steady growth is a leak at once: nothing fills up with files, processes, shared memory."""
        return self.source is not None and self.kept_from is None

    @property
    def on_gpu(self) -> bool:
        """Whether it counts memory of the GPU."""
        return self.tag.startswith("debug/gpu/")

    def read(self, tags: Mapping[str, float]) -> float | None:
        """Return its value in bytes or counts, less what is planned; None where the system does not count."""
        if self.tag not in tags:
            return None
        planned = 0.0 if self.planned_tag is None else tags[self.planned_tag]
        return (tags[self.tag] - planned) * self.scale


def watched_counters(threshold_mb: float, on_cuda: bool) -> list[WatchedCounter]:
    """Return what must not grow; the threshold is `memory.leak_threshold_mb`."""
    threshold = threshold_mb * _MB
    resident = resident_tolerance(threshold)
    host, gpu = "host memory in use, not accounted for", "GPU memory in use, not accounted for"
    found = [
        WatchedCounter(host, "debug/cpu/in_use_mb", threshold, planned_tag=accounted_tag("cpu")),
        WatchedCounter(
            "resident private memory, not accounted for",
            "debug/cpu/rss_anon_mb",
            resident,
            planned_tag=accounted_tag("cpu"),
            kept_from=host,
            source="pages that the C allocator keeps of what was freed",
        ),
    ]
    for name, tag, tolerance, unit, source in (
        ("shared memory", "rss_shmem_mb", threshold, "MB", "blocks that are not closed"),
        ("open files", "open_files_count", 4, "files", "descriptors that are not closed"),
        ("child processes", "children_count", 1, "processes", "workers that are not stopped"),
    ):
        scale, what = _MB if unit == "MB" else 1, f"{name}: {source}"
        found.append(WatchedCounter(name, f"debug/cpu/{tag}", tolerance, unit, scale, source=what))
    if on_cuda:
        found += [
            WatchedCounter(gpu, "debug/gpu/alloc_mb", threshold, planned_tag=accounted_tag("cuda")),
            WatchedCounter(
                "GPU memory reserved, not accounted for",
                "debug/gpu/reserved_mb",
                resident,
                planned_tag=accounted_tag("cuda"),
                kept_from=gpu,
                source="segments that PyTorch's allocator keeps of what was freed",
            ),
        ]
    return found


def accounted_tag(device: str) -> str:
    """Return where a log line has the bytes, in MB, that the run's components hold on `cpu` or `cuda`."""
    return f"memory/{device}_accounted_mb"
