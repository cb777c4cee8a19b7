"""The peer's side of a benchmark: a process that measures on request, with a protocol of JSON lines.

It runs in the peer's environment, without Reverie. The suite starts it with a single argument, the options.
Output from libraries goes to stderr, because stdout is reserved for answers. The JAX peer's environment does
not contain torch, so torch is imported only where it is used.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import psutil

_CLEAR_REFS = "/proc/self/clear_refs"


class BlockServer:
    """Answers requests for blocks of calls. Subclasses add their library."""

    libraries: tuple[str, ...] = ("numpy",)
    """Packages with versions to report, in addition to the peer's own."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = json.loads(sys.argv[1])
        self.device: str = self.options.get("device", "cpu")
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def synchronize(self) -> None:
        """Wait for the device to finish all calls."""

    def reset_peak(self) -> None:
        """Reset the peak that `peak_mb` returns."""
        reset_peak("cpu")

    def peak_mb(self) -> float:
        """Return the peak memory of this process since `reset_peak`, in MB of 1e6 bytes."""
        return peak_mb("cpu")

    def block(self, call: Callable[[], Any], seconds: float) -> list[float]:
        """Call a function for the given seconds, at least once, and return the seconds of each call."""
        calls, end = [], time.perf_counter() + seconds
        while not calls or time.perf_counter() < end:
            start = time.perf_counter()
            call()
            self.synchronize()
            calls.append(time.perf_counter() - start)
        return calls

    def ready(self, *packages: str, **facts: Any) -> None:
        """Report that blocks may be requested, with the versions of the measured packages."""
        versions = {name: version(name) for name in (*packages, *self.libraries)}
        self._send(facts={"versions": versions, **facts})

    def requests(self) -> Iterator[float]:
        """Yield the length of each requested block in seconds, until the input ends."""
        for line in sys.stdin:
            yield json.loads(line)["seconds"]

    def answer(self, calls: list[float], **facts: Any) -> None:
        """Send the seconds of each call of a block."""
        memory = psutil.Process().memory_info().rss
        self._send(calls=calls, facts={"rss_mb": memory / 1e6, "peak_mb": self.peak_mb(), **facts})

    def run(self, call: Callable[[], Any], share: float = 1.0) -> None:
        """Time a function for each requested block, and report each call's time multiplied by `share`."""
        for seconds in self.requests():
            self.reset_peak()
            self.answer([share * taken for taken in self.block(call, seconds)])

    def cycles(self, *packages: str, **facts: Any) -> Iterator[None]:
        """Time a peer's loop that advances this iterator after each cycle. The first cycle is not timed.

        Raises:
            SystemExit: When the input ends.
        """
        self.ready(*packages, **facts)
        for seconds in self.requests():
            self.reset_peak()
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


class Server(BlockServer):
    """Answers requests for blocks of calls of a torch peer."""

    libraries = ("torch", "numpy")

    def __init__(self) -> None:
        import torch

        super().__init__()
        torch.set_num_threads(self.options["threads"])

    def synchronize(self) -> None:
        """Wait for the device to finish all calls."""
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def reset_peak(self) -> None:
        """Reset the peak that `peak_mb` returns."""
        reset_peak(self.device)

    def peak_mb(self) -> float:
        """Return the peak memory of this process since `reset_peak`, in MB of 1e6 bytes."""
        return peak_mb(self.device)


def reset_peak(device: str) -> None:
    """Reset the peak that `peak_mb` returns."""
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
    elif os.path.exists(_CLEAR_REFS):
        # Some Linux kernels lack this file.
        with open(_CLEAR_REFS, "w") as peak:
            peak.write("5")  # "reset the peak resident set size to the current one", proc(5)


def peak_mb(device: str) -> float:
    """Return this process's peak memory since `reset_peak`: allocated on a GPU, resident on a CPU."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 1e6
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 / 1e6


def commit_of(checkout: str) -> str | None:
    """Return the commit of a checkout, with a marker for local changes, or `None` without git."""
    git = ["git", f"--git-dir={checkout}/.git", f"--work-tree={checkout}", "describe", "--always", "--dirty"]
    return subprocess.run(git, stdout=subprocess.PIPE, text=True, check=False).stdout.strip() or None
