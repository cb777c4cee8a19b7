"""Run an unmodified program as __main__ with an injected leak.

    python benchmarks/watched/leaky.py <leak>[:every] <program.py> arguments...

`<leak>` is one of `leaks.NAMES`, or `none`. With `:every`, it leaks only at each `every`-th step. If the
environment variable LEAKY_REPORT is set, that file receives a JSON object at exit: `events`, `steps` (of all
optimizers), `seconds` (since the first step), and `rss_mb` with its `seconds_at`, about once per second.
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
    """Counts optimizer steps, and reads the resident memory about once per second."""

    def __init__(self, event: leaks.Every | None):
        self._event, self._process = event, psutil.Process()
        self.steps, self._first, self._due = 0, 0.0, 0.0
        self.rss_mb: list[float] = []
        self.seconds_at: list[float] = []

    def __call__(self, *_: Any) -> None:
        """Record one step."""
        now = time.monotonic()
        self._first = self._first or now
        self.steps += 1
        if now >= self._due:
            self._due = now + 1.0
            self.rss_mb.append(round(self._process.memory_info().rss / 2**20, 2))
            self.seconds_at.append(round(now - self._first, 1))

    def write(self, path: str) -> None:
        """Write the JSON object described in the module docstring."""
        events = self._event.events if self._event else 0
        seconds = round(time.monotonic() - self._first, 2)
        fields = {"events": events, "steps": self.steps, "seconds": seconds}
        Path(path).write_text(
            json.dumps(fields | {"rss_mb": self.rss_mb, "seconds_at": self.seconds_at}) + "\n"
        )


def main() -> None:
    """Install the leak, then run the program."""
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
