"""Judge the memory of child processes: DataLoader workers, `multiprocessing`, and forked processes."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ..counters.process import live_children
from ..objects.growth import GrowthSources, Message
from ..texts import printable, size_text
from .detector import WINDOW, LeakDetector, WatchedCounter
from .suspicion import Growth
from .verdict import TrendTest

# A sample reads as many children as this CPU time allows. The next sample continues.
_READ_SECONDS = 0.005
_LONGEST_COMMAND = 80
CHILD_MEMORY = WatchedCounter("memory of a child process", tag="", tolerance=0.0)
"""Stands for the memory of any child. It is not logged."""


@dataclass(slots=True)
class Child:
    """A child process and the series of its memory."""

    process: psutil.Process
    detector: LeakDetector
    growth: Growth = field(default_factory=lambda: Growth(GrowthSources(())))
    first: tuple[int, int] | None = None
    """Sizes at the first reading, in bytes."""

    def read(self) -> int:
        """Return the growth in bytes since the first call.

        Pages that the child shares with its parent count from the start. Growth therefore excludes copies on
        write, such as the pages that a DataLoader worker copies when it counts references to a shared list.
        It also excludes memory that was allocated earlier and is now used for the first time.
        """
        info = self.process.memory_info()
        private = info.rss - getattr(info, "shared", 0)
        sizes = private, getattr(info, "data", private)
        self.first = self.first or sizes
        return min(sizes[0] - self.first[0], sizes[1] - self.first[1])


class ChildProcesses:
    """Samples the memory of all descendants of this process, and finds those that grow steadily."""

    def __init__(self, tolerance_bytes: float) -> None:
        self._tolerance_bytes = tolerance_bytes
        self._children: dict[psutil.Process, Child] = {}

    def sample(self, step: int, count: float, wait_for: Iterable[str], is_after_pause: bool) -> bool:
        """Read the memory of the `count` children, and return whether any of them was judged again.

        The other arguments are those of `LeakDetector`.
        """
        if count != len(self._children):
            new = (Child(each, LeakDetector(self._tolerance_bytes, wait_for)) for each in live_children())
            self._children = {child.process: self._children.get(child.process, child) for child in new}
        is_judged_anew, began = False, time.thread_time()
        for process, child in [*self._children.items()]:
            # The next sample begins with the children that are not read now.
            del self._children[process]
            with suppress(psutil.Error):
                is_judged_anew |= child.detector.add(step, child.read(), is_after_pause)
                self._children[process] = child
            if time.thread_time() - began > _READ_SECONDS:
                break
        return is_judged_anew

    def restart(self, step: int, reason: str) -> None:
        """Judge only samples after this event (see `LeakDetector`)."""
        for child in self._children.values():
            child.detector.restart(step, reason)

    def trends(self) -> dict[str, TrendTest]:
        """Return the test of each child that grows or was reported, by its name in findings."""
        shown = (c for c in self._children.values() if c.detector.is_suspect or c.growth.reported is not None)
        return {f"child process {child.process.pid}": child.detector.trend_test() for child in shown}

    def growing(self) -> Iterator[tuple[Child, str, int]]:
        """Yield one growing child for each command, its name, and the number of others with this command."""
        found = dict[str, list[Child]]()
        with suppress(psutil.Error):
            for child in self._children.values():
                # A child imports and loads data when it starts, so its growth must last for a whole window.
                if child.detector.alarm and child.detector.growing_samples >= WINDOW:
                    words = child.process.cmdline()
                    # A forked child runs the watched program.
                    words = ["python", *sys.argv] if words == psutil.Process().cmdline() else words
                    command = " ".join(Path(word).name if word.startswith("/") else word for word in words)
                    found.setdefault(printable(command, _LONGEST_COMMAND), []).append(child)
            for command, children in found.items():
                # A child that was reported stays the one that is shown.
                child, others = min(children, key=lambda c: c.growth.reported is None), len(children) - 1
                size = child.process.memory_full_info().uss
                rate = child.detector.trend_per_step().slope_bytes_per_sample
                name = f"child process {child.process.pid}"
                text = f"{name} ({command}) grows: {size_text(size)}, +{size_text(rate)} per step."
                more = f" Other growing processes with this command: {others:,}." if others else ""
                child.growth.found = GrowthSources((text,), messages=(Message(text + more, owner=name),))
                yield child, name, others
