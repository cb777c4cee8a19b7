"""Run GPU tests and time updates in one short lease of a GPU. `h100.sh` starts this and explains its usage.

All processes compile simultaneously while the GPU tests run. Once the device is quiet, updates of Reverie and
of the author's code are timed in turn, size by size. Finally, each process traces one update.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

from benchmarks.suite.bench import JAX, PEER_SCRIPTS, Bench, BenchConfig
from benchmarks.suite.compare import OURS
from benchmarks.suite.machine import machine_facts
from benchmarks.suite.process import ProcessVariant
from benchmarks.suite.timing import Block, counted, interleave

SIZES = ("size1m", "size12m", "size200m")
PROFILED = "size12m"
ROUNDS, BLOCK_SECONDS, THREADS = 2, 1.0, 4
TESTS = (
    "tests/models",
    "tests/orchestration/test_nonfinite.py",
    "tests/orchestration/test_resume.py",
    "tests/planning/test_memory_plan.py",
    "tests/workflows/test_cuda_graphs.py",
    "tests/workflows/test_precision.py",
    "tests/workflows/test_ranks.py",
)
"""Files with GPU tests that run the scan in models/scan.py."""

SHOWN_KERNELS = 15


@dataclass
class Row:
    """Update times of one implementation at one size."""

    size: str
    name: str
    trace: Path
    ready: Future[ProcessVariant]
    start: float = field(default_factory=time.monotonic)
    ready_s: float | None = None
    """Seconds spent on imports, compilation and warm-up."""

    blocks: list[Block] = field(default_factory=list)
    error: str = "not ready in time"
    is_late: bool = False

    def note_ready(self, ready: Future[ProcessVariant]) -> None:
        """Record the time at which the process was ready, or the process's error."""
        if not self.is_late:
            self.ready_s = round(time.monotonic() - self.start, 1)
            self.error = str(ready.exception() or "")

    @property
    def variant(self) -> ProcessVariant | None:
        """The running process, if it is ready."""
        return self.ready.result() if self.ready.done() and not self.ready.exception() else None

    @property
    def kernels(self) -> int | None:
        """Number of kernels in an update, or `None` before the trace."""
        path = self.trace / "kernels.json"
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def calls(self) -> list[float]:
        """Milliseconds of each call in the undisturbed blocks."""
        return [1e3 * seconds for block in counted(self.blocks) for seconds in block.seconds]

    def line(self) -> str:
        """Return the row as a line of the table."""
        if not self.calls:
            return f"{self.size:9} {self.name:10} {self.error}"
        times = ", ".join(f"{1e3 * median(block.seconds):.2f}" for block in self.blocks)
        counted_kernels = "-" if self.kernels is None else f"{self.kernels:,}"
        return (
            f"{self.size:9} {self.name:10} {median(self.calls):9.2f} ms (blocks {times}), "
            f"{counted_kernels} kernels, ready after {self.ready_s} s"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the times in milliseconds, kernels, blocks and facts, or the error."""
        return {
            "size": self.size,
            "variant": self.name,
            "ready_s": self.ready_s,
            "error": self.error,
            "median_ms": median(self.calls) if self.calls else None,
            "min_ms": min(self.calls, default=None),
            "kernels": self.kernels,
            "blocks": [block.as_json() for block in self.blocks],
            "facts": None if self.variant is None else self.variant.facts,
        }


def main() -> None:
    """Run tests and updates, and print the results last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--dreamerv3", required=True, help="checkout of danijar/dreamerv3")
    parser.add_argument("--jax-python", default=sys.executable, help="its interpreter")
    parser.add_argument("--seconds", type=float, default=400.0, help="limit of tests and compilation")
    parser.add_argument("--quick", action="store_true", help="tiny networks on a CPU, to check this script")
    asked = parser.parse_args()
    out: Path = asked.out.absolute()
    deadline = time.monotonic() + asked.seconds
    with ThreadPoolExecutor(2 * len(SIZES)) as pool:
        rows = started(asked, pool, out)
        tests = run_tests(out, asked.seconds, workers=0 if asked.quick else 4)
        wait([row.ready for row in rows], max(0.0, deadline - time.monotonic()))
        for size in dict.fromkeys(row.size for row in rows):
            measure([row for row in rows if row.size == size], asked.quick)
            write(out, rows, asked.quick)
        for row in rows:
            row.is_late = row.variant is None
            if row.variant is not None:
                # The process traces an update once its input ends.
                row.variant.close()
        # Processes that were not ready in time would keep the pool waiting.
        for child in psutil.Process().children(recursive=True):
            child.kill()
    write(out, rows, asked.quick)
    print_results(out, rows, tests)


def started(asked: argparse.Namespace, pool: ThreadPoolExecutor, out: Path) -> list[Row]:
    """Start all processes simultaneously, one for each size of each implementation."""
    device, mode, precision = ("cpu", "none", "float32") if asked.quick else ("cuda", "inductor", "bfloat16")
    bench = Bench(
        BenchConfig(quick=asked.quick), [f"device={device}", f"compile={mode}", f"precision={precision}"]
    )
    shared = {
        "threads": THREADS,
        "quick": asked.quick,
        "device": device,
        "precision": "bf16-mixed" if precision == "bfloat16" else "32-true",
        "checkout": str(Path(asked.dreamerv3).absolute()),
    }
    commands = {
        OURS: [sys.executable, "-m", "benchmarks.h100_update"],
        JAX: [asked.jax_python, str(PEER_SCRIPTS / f"{JAX}_update.py")],
    }
    rows = []
    for size in (PROFILED,) if asked.quick else SIZES:
        for name, command in commands.items():
            trace = out / "traces" / f"{size}_{name}"
            trace.mkdir(parents=True, exist_ok=True)
            options = {
                **shared,
                "size": size.removeprefix("size"),
                "overrides": bench.overrides_of(f"model={size}"),
                "trace": str(trace),
            }
            row = Row(size, name, trace, pool.submit(ProcessVariant, name, command, options))
            row.ready.add_done_callback(row.note_ready)
            rows.append(row)
    return rows


def run_tests(out: Path, seconds: float, workers: int) -> str:
    """Run the GPU tests, write their output to `gpu_tests.log`, and return its last line.

    They have a low priority, because other jobs compile on the same processors. pytest-benchmark is disabled.
    Otherwise, its warning about several workers would be an error.
    """
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n", str(workers)]
    command = ["nice", *command, "-p", "no:cacheprovider", "-p", "no:benchmark"]
    with (out / "gpu_tests.log").open("w") as log:
        try:
            subprocess.run([*command, *TESTS], stdout=log, stderr=subprocess.STDOUT, timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"GPU tests: not finished within {seconds:g} s"
    return f"GPU tests: {(out / 'gpu_tests.log').read_text().splitlines()[-1].strip('= ')}"


def measure(rows: list[Row], quick: bool) -> None:
    """Time the implementations that are ready in turn, size by size."""
    running = {row.name: row for row in rows if row.variant is not None}
    variants = [row.variant for row in running.values() if row.variant is not None]
    try:
        blocks = interleave(variants, ROUNDS, 0.0 if quick else BLOCK_SECONDS)
    except RuntimeError as error:
        for row in running.values():
            row.error = str(error)
        return
    for name, row in running.items():
        row.blocks = blocks[name]
    print(*(row.line() for row in rows), sep="\n", flush=True)


def write(out: Path, rows: list[Row], quick: bool) -> None:
    """Write all results so far to `updates.json`."""
    device = torch.device("cpu" if quick else "cuda")
    report = {
        "command": sys.argv[1:],
        "machine": machine_facts(device),
        "rows": [row.as_json() for row in rows],
    }
    (out / "updates.json").write_text(json.dumps(report, indent=1) + "\n")


def print_results(out: Path, rows: list[Row], tests: str) -> None:
    """Print tests, times, kernel counts and longest kernels, and save all kernels of size12m to a file."""
    print(f"\n{tests}")
    print(*(row.line() for row in rows), sep="\n")
    kernels = out / "traces" / f"{PROFILED}_{OURS}" / "kernels.tsv"
    if kernels.exists():
        kept = shutil.copy(kernels, out / f"kernels_{PROFILED}.tsv")
        print(*Path(kept).read_text().splitlines()[:SHOWN_KERNELS], sep="\n")
    shutil.rmtree(out / "traces")


if __name__ == "__main__":
    main()
