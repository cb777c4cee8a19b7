"""A watch that samples after each step, and programs for it."""

import math
import subprocess
import sys
import textwrap
import time
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from heapwatch import Watch

KB = 1000
FAST = 1e-6


def watched(grow: Any, samples: int = 160, threshold_mb: float = 2.0) -> Watch:
    """Return a watch that has sampled after each step of a program. A step is a call of `grow`."""
    with Watch(seconds=FAST, share=math.inf, threshold_mb=threshold_mb) as watch:
        feed(watch, grow, range(samples))
    return watch


def feed(watch: Watch, grow: Any, steps: range) -> None:
    """Make further steps."""
    for step in steps:
        grow(step)
        # A sample is due after each step.
        watch._stride, watch._next_step, watch._distance = 1, step, 0.0
        # The load of the machine must not matter.
        watch._sampled_at = time.perf_counter()
        watch.sample(step)


class Findings(NamedTuple):
    verdict: str
    messages: list[str]


def findings_of(folder: Path, module: str, function: str) -> Findings:
    """Call a function of a module 66 times under a watch. Call this in a fresh process."""
    sys.path.insert(0, str(folder))
    watch = watched(getattr(import_module(module), function), 66, threshold_mb=0.3)
    messages = [message for each in watch.findings for message in map(str, each.messages or each.sources)]
    return Findings(watch.verdict, messages)


def write(folder: Path, text: str, name: str = "train.py") -> None:
    """Write a program."""
    (folder / name).write_text(textwrap.dedent(text))


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder."""
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
