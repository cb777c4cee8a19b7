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
    on_host, on_card = accounted_tag("cpu"), accounted_tag("cuda")
    host, gpu = "host memory in use, not accounted for", "GPU memory in use, not accounted for"
    pages = "pages that the C allocator keeps of what was freed"
    segments = "segments that PyTorch's allocator keeps of what was freed"
    blocks = "shared memory: blocks that are not closed"
    files = "open files: descriptors that are not closed"
    workers = "child processes: workers that are not stopped"
    found = [
        WatchedCounter(host, "debug/cpu/in_use_mb", threshold, planned_tag=on_host),
        WatchedCounter(
            "resident private memory, not accounted for",
            "debug/cpu/rss_anon_mb",
            resident,
            planned_tag=on_host,
            kept_from=host,
            source=pages,
        ),
        WatchedCounter("shared memory", "debug/cpu/rss_shmem_mb", threshold, source=blocks),
        WatchedCounter("open files", "debug/cpu/open_files_count", 4, "files", 1, source=files),
        WatchedCounter("child processes", "debug/cpu/children_count", 1, "processes", 1, source=workers),
    ]
    if on_cuda:
        found += [
            WatchedCounter(gpu, "debug/gpu/alloc_mb", threshold, planned_tag=on_card),
            WatchedCounter(
                "GPU memory reserved, not accounted for",
                "debug/gpu/reserved_mb",
                resident,
                planned_tag=on_card,
                kept_from=gpu,
                source=segments,
            ),
        ]
    return found


def accounted_tag(device: str) -> str:
    """Return where a log line has the bytes, in MB, that the run's components hold on `cpu` or `cuda`."""
    return f"memory/{device}_accounted_mb"
