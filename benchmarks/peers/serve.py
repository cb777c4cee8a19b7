"""The peer's side of a benchmark: a process that measures on request, with a protocol of JSON lines.

It runs in `.venv-peers` without Reverie. The suite starts it with one argument, the options. Output of
libraries goes to stderr, because stdout is reserved for answers.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import psutil
import torch

_CLEAR_REFS = "/proc/self/clear_refs"


class Server:
    """Answers requests for blocks of calls."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = json.loads(sys.argv[1])
        self.device: str = self.options.get("device", "cpu")
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        torch.set_num_threads(self.options["threads"])

    def ready(self, *packages: str, **facts: Any) -> None:
        """Report that blocks may be requested, with the versions of the measured packages."""
        versions = {name: version(name) for name in (*packages, "torch", "numpy")}
        self._send(facts={"versions": versions, **facts})

    def requests(self) -> Iterator[float]:
        """Yield the length of each requested block in seconds, until the input ends."""
        for line in sys.stdin:
            yield json.loads(line)["seconds"]

    def answer(self, calls: list[float], **facts: Any) -> None:
        """Send the seconds of each call of a block."""
        memory = psutil.Process().memory_info().rss
        self._send(calls=calls, facts={"rss_mb": memory / 1e6, "peak_mb": peak_mb(self.device), **facts})

    def run(self, call: Callable[[], Any], share: float = 1.0) -> None:
        """Time a function for each requested block, and report the given share of each call's time."""
        synchronize = torch.cuda.synchronize if self.device == "cuda" else lambda: None
        for seconds in self.requests():
            reset_peak(self.device)
            calls, end = [], time.perf_counter() + seconds
            while not calls or time.perf_counter() < end:
                start = time.perf_counter()
                call()
                synchronize()
                calls.append(share * (time.perf_counter() - start))
            self.answer(calls)

    def cycles(self, *packages: str, **facts: Any) -> Iterator[None]:
        """Time a foreign loop that advances this iterator at the end of each cycle. The first is not timed.

        Raises:
            SystemExit: When the input ends.
        """
        self.ready(*packages, **facts)
        for seconds in self.requests():
            reset_peak(self.device)
            calls: list[float] = []
            start = time.perf_counter()
            end = start + seconds
            while not calls or start < end:
                yield
                now = time.perf_counter()
                calls.append(now - start)
                start = now
            self.answer(calls)
        raise SystemExit

    def _send(self, **message: Any) -> None:
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()


def reset_peak(device: str) -> None:
    """Restart the peak that `peak_mb` returns."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif os.path.exists(_CLEAR_REFS):
        # Some kernels lack this file.
        with open(_CLEAR_REFS, "w") as peak:
            peak.write("5")  # "reset the peak resident set size to the current one", proc(5)


def peak_mb(device: str) -> float:
    """Return this process's peak memory since `reset_peak`: allocated on a GPU, resident on a CPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 / 1e6
