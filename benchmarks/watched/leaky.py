"""Run an unchanged program as __main__ with a leak put in from outside.

    python benchmarks/watched/leaky.py <leak>[:every] <program.py> arguments...

`<leak>` is one of `leaks.NAMES`, or `none`; with `:every` it takes place at each `every`-th step only. If
the environment has LEAKY_REPORT, that file gets a JSON object when the program ends: `events`, `steps` (of
all optimisers), `seconds` (since the first step), and `rss_mb` with its `seconds_at`, about once a second.
"""

import atexit
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from torch.optim.optimizer import register_optimizer_step_post_hook

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)
import leaks  # noqa: E402


class Course:
    """Counts the steps of every optimiser, and reads the resident memory about once a second."""

    def __init__(self, event: leaks.Every | None):
        self._event, self._process = event, psutil.Process()
        self.steps, self._first, self._due = 0, 0.0, 0.0
        self.rss_mb: list[float] = []
        self.seconds_at: list[float] = []

    def __call__(self, *_: Any) -> None:
        """Note one step."""
        now = time.monotonic()
        self._first = self._first or now
        self.steps += 1
        if now >= self._due:
            self._due = now + 1.0
            self.rss_mb.append(round(self._process.memory_info().rss / 2**20, 2))
            self.seconds_at.append(round(now - self._first, 1))

    def write(self, path: str) -> None:
        """Write the object that the module describes."""
        events = self._event.events if self._event else 0
        seconds = round(time.monotonic() - self._first, 2)
        fields = {"events": events, "steps": self.steps, "seconds": seconds}
        Path(path).write_text(
            json.dumps(fields | {"rss_mb": self.rss_mb, "seconds_at": self.seconds_at}) + "\n"
        )


def main() -> None:
    """Install the leak, then become the program."""
    name, _, every = sys.argv[1].partition(":")
    event = None if name == "none" else leaks.install(name, int(every or 1))
    if report := os.environ.get("LEAKY_REPORT"):
        course = Course(event)
        register_optimizer_step_post_hook(course)
        atexit.register(course.write, report)
    program = sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(Path(program).resolve().parent))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
