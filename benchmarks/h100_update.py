"""Time Reverie's update on batches of 16 x 64 in its own process, so that several sizes compile in parallel.

The process compiles before it reports that it is ready. After the last block it traces one more update into
the folder of the option `trace`: `kernels.tsv` lists the kernels by name, and `kernels.json` their number.
"""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.peers.serve import Server
from benchmarks.suite.bench import pong_spec
from benchmarks.suite.compare import OURS
from benchmarks.suite.data import random_batch
from benchmarks.suite.timing import Local
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import typed
from reverie.orchestration.dreamer.recipe import build_workflow
from reverie.utils.seeding import seed_global

_WARM_UP = 6
"""Number of updates before the first block. The fourth update captures a CUDA graph."""


class EventServer(Server):
    """Times calls with device events, as the suite does."""

    def block(self, call: Callable[[], Any], seconds: float) -> list[float]:
        """Call a function for the given seconds, at least once, and return the seconds of each call."""
        return Local(OURS, call, torch.device(self.device)).block(seconds)


class Warnings(logging.Handler):
    """Collects warnings, such as reports that a part was not compiled or captured."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message of a record."""
        self.lines.append(record.getMessage())


def main() -> None:
    """Answer requests until the input ends."""
    server, kept = EventServer(), Warnings()
    logging.getLogger().addHandler(kept)
    config = typed(compose_jobs(server.options["overrides"])[0], DreamerTrainConfig)
    seed_global(config.seed)
    workflow = build_workflow(config, pong_spec(1))
    batch = random_batch(config, workflow.env).to(torch.device(server.device))
    start = time.perf_counter()
    for _ in range(_WARM_UP):
        workflow.update(batch)
    server.synchronize()
    server.ready(
        parameters=workflow.num_parameters,
        compile=config.compile.value,
        warm_up_s=time.perf_counter() - start,
        peak_mib=torch.cuda.max_memory_allocated() / 2**20,
        peak_reserved_mib=torch.cuda.max_memory_reserved() / 2**20,
        warnings=kept.lines,
    )
    server.run(lambda: workflow.update(batch))
    trace(lambda: workflow.update(batch), server, Path(server.options["trace"]))


def trace(update: Callable[[], Any], server: Server, folder: Path) -> None:
    """Trace one update: kernels on a GPU, operators on a CPU."""
    is_cuda = server.device == "cuda"
    activity = ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        update()
        server.synchronize()
    kind = DeviceType.CUDA if is_cuda else DeviceType.CPU
    spent = [
        (event.self_device_time_total if is_cuda else event.self_cpu_time_total, event.count, event.key)
        for event in profiler.key_averages()
        if event.device_type == kind and not event.key.startswith(("Mem", "cuda"))
    ]
    number, total = sum(count for _, count, _ in spent), sum(us for us, _, _ in spent)
    lines = [f"# {number} kernels, {total / 1e3:.2f} ms", "ms\tshare\tcalls\tus_each\tname"]
    for us, count, name in sorted(spent, reverse=True):
        lines.append(f"{us / 1e3:.3f}\t{us / total:.3f}\t{count}\t{us / count:.2f}\t{name[:300]}")
    (folder / "kernels.tsv").write_text("\n".join(lines) + "\n")
    (folder / "kernels.json").write_text(json.dumps(number))


if __name__ == "__main__":
    main()
