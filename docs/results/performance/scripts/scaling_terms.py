"""Measure the parts of an update on several ranks, and predict from them how updates scale.

OMP_NUM_THREADS=1 python scaling_terms.py measure <out.json>       measures, in about 10 minutes on one core
python scaling_terms.py table <out.json>                           prints the tables of docs/performance.md

Every rank has one thread. Ranks that share a core take turns on it, so an exchange between them also includes
the cost of context switches.
"""

import json
import math
import multiprocessing
import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from reverie.buffers import SequenceBatch
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import typed
from reverie.orchestration.dreamer.dry_run import workflow_config
from reverie.orchestration.recipes import recipe_of
from reverie.utils.process_group import ProcessGroup, joined, started_ranks
from reverie.utils.ranks import ALONE, Ranks
from reverie.utils.timestep import EnvSpec
from reverie.workflows.world_models import DreamerWorkflow

CASES = {
    "catch": ("experiment=dreamer_catch",),
    "pong": ("experiment=dreamer_ataripong",),
    "size12m": (
        "experiment=dreamer_ataripong",
        "model=size12m",
        "training.batch_size=16",
        "training.sequence_length=64",
    ),
}
COMMON = ("device=cpu", "compile=none", "buffer=ram", "buffer.capacity=4000")
ROUNDS = {"catch": 40, "pong": 20, "size12m": 4}
KIB = 2**10
SIZES = [4, 16 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB, 16384 * KIB, 49152 * KIB]
REPETITIONS = {4: 200, 16 * KIB: 200, 256 * KIB: 100, 1024 * KIB: 60, 4096 * KIB: 40}
FEWEST_REPETITIONS = 20

H100_SECONDS, H100_BYTES = 26.674e-3, 4 * 10_492_616
"""Measured: an update of size12m, 16 windows of 64, as one graph (h100/updates.jsonl), and its gradients."""

GPUS_OF_A_HOST, NVLINK = 8, (10e-6, 450e9)
HOSTS = {
    "one host, NVLink": (1, None),
    "64 hosts, 400 Gb/s per GPU": (64, (20e-6, 50e9)),
    "64 hosts, 100 Gb/s per host": (64, (50e-6, 12.5e9 / GPUS_OF_A_HOST)),
}
"""Assumed from data sheets: latency of a step in seconds, and bytes per second of a GPU in one direction."""


class CountingRanks(ProcessGroup):
    """A process group that records the bytes of each exchange."""

    def __init__(self, of: ProcessGroup) -> None:
        super().__init__(of.index, of.size, timeout=of._timeout, store=of._store)
        self.counted: list[int] = []

    def _do(self, collective: Any, *args: Any, **keywords: Any) -> None:
        sent = args[-1]
        self.counted.append(sent.numel() * sent.element_size())
        super()._do(collective, *args, **keywords)


def measure(out: Path) -> None:
    torch.set_num_threads(1)
    cases = {name: measure_case(name, settings) for name, settings in CASES.items()}
    exchanges = {size: in_ranks(size, exchange_times) for size in (2, 4)}
    found = {"machine": machine(), "cases": cases, "exchanges": exchanges}
    out.write_text(json.dumps(found) + "\n")


def machine() -> dict[str, Any]:
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": cpu[0].partition(": ")[2] if cpu else platform.processor(),
        "cores_of_this_process": len(os.sched_getaffinity(0)),
        "load_at_the_end": os.getloadavg(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def measure_case(name: str, settings: tuple[str, ...]) -> dict[str, Any]:
    """Time updates on a whole batch and on parts of it in turn, then updates on two ranks."""
    config = typed(compose_jobs([*COMMON, *settings])[0], DreamerTrainConfig)
    env, batch = batch_of(config)
    workflow = workflow_of(config, env, ALONE)
    whole = config.training.batch_size
    parts = [whole // divisor for divisor in (1, 2, 4, 8, 16) if divisor <= whole]
    seconds: dict[int, list[float]] = {size: [] for size in parts}
    for turn in range(ROUNDS[name] + 1):
        for size in parts:
            spent = cpu_seconds(lambda size=size: workflow.update(rows(batch, slice(size))))
            # The first update is a warm-up.
            if turn:
                seconds[size].append(spent)
    bucket = 4 * workflow.num_parameters
    del workflow
    ranks = in_ranks(2, lambda ranks: updates_of_rank(config, env, batch, ranks, ROUNDS[name]))
    return {
        "settings": [*COMMON, *settings],
        "gradient_bytes": bucket,
        "cpu_seconds": seconds,
        "ranks": ranks,
    }


def batch_of(config: DreamerTrainConfig) -> tuple[EnvSpec, SequenceBatch]:
    """Return a batch of real play."""
    parts = recipe_of(config).build(config, Path(tempfile.mkdtemp()))
    arrival = parts.environment.reset()
    for _ in range(2 * (config.training.sequence_length + 1)):
        output = parts.workflow.collect_step(arrival)
        parts.replay.add(arrival, output.action, output.latent if parts.replay.stores_latents else None)
        arrival = parts.environment.step(output.action)
    batch = parts.replay.sample(config.training.batch_size)
    parts.environment.close()
    return parts.environment.spec, batch


def workflow_of(config: DreamerTrainConfig, env: EnvSpec, ranks: Ranks) -> DreamerWorkflow:
    return DreamerWorkflow(env, workflow_config(config), torch.device("cpu"), ranks=ranks)


def rows(batch: SequenceBatch, of: slice) -> SequenceBatch:
    return batch.select(of, slice(None))


def cpu_seconds(function: Callable[[], object]) -> float:
    before = time.process_time()
    function()
    return time.process_time() - before


def updates_of_rank(
    config: DreamerTrainConfig, env: EnvSpec, batch: SequenceBatch, ranks: ProcessGroup, rounds: int
) -> dict[str, Any]:
    """Time this rank's updates, and record the bytes of each exchange in one of them."""
    counting = CountingRanks(ranks)
    workflow = workflow_of(config, env, counting)
    own = rows(batch, counting.slice_of(len(batch.reward)))
    workflow.update(own)
    counting.counted.clear()
    workflow.update(own)
    exchanged = [*counting.counted]
    return {
        "exchanged": exchanged,
        "cpu_seconds": [cpu_seconds(lambda: workflow.update(own)) for _ in range(rounds)],
    }


def exchange_times(ranks: Ranks) -> dict[int, dict[str, list[float]]]:
    """Return this rank's wall and CPU seconds for sums over all ranks, by number of bytes."""
    found: dict[int, dict[str, list[float]]] = {}
    for size in SIZES:
        values = torch.ones(size // 4)
        found[size] = {"wall": [], "cpu": []}
        for turn in range(REPETITIONS.get(size, FEWEST_REPETITIONS) + 3):
            dist.barrier()
            before = time.perf_counter(), time.process_time()
            dist.all_reduce(values)
            after = time.perf_counter(), time.process_time()
            if turn >= 3:
                found[size]["wall"].append(after[0] - before[0])
                found[size]["cpu"].append(after[1] - before[1])
            values.fill_(1.0)
    return found


def in_ranks(size: int, function: Callable[[Any], Any]) -> Any:
    """Run a function in `size` forked ranks, and return the result of rank 0."""
    forks = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ours, theirs = forks.Pipe(duplex=False)
    run = {
        "WORLD_SIZE": f"{size}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{port}",
        "GLOO_SOCKET_IFNAME": "lo",
    }

    def be(index: int) -> None:
        os.environ |= run | {"RANK": f"{index}", "LOCAL_RANK": f"{index}"}
        with joined(started_ranks(), 600.0) as ranks:
            found = function(ranks)
            if ranks.is_first:
                theirs.send(found)

    processes = [forks.Process(target=be, args=(index,)) for index in range(size)]
    for process in processes:
        process.start()
    found = ours.recv()
    for process in processes:
        process.join()
    return found


def table(path: Path) -> None:
    found = json.loads(path.read_text())
    updates, fits = [], {}
    for name, case in found["cases"].items():
        times = {int(size): median(spent) for size, spent in case["cpu_seconds"].items()}
        sizes, seconds = np.array([*times]), np.array([*times.values()])
        fits[name] = slope, fixed = np.polyfit(sizes, seconds, 1, w=1 / seconds)
        parts = ", ".join(f"{size}: {each / seconds[0]:.2f}" for size, each in times.items())
        own, ranks = median(case["ranks"]["cpu_seconds"]), case["ranks"]["exchanged"]
        late = np.quantile(case["cpu_seconds"][f"{sizes[1]}"], 0.9) / seconds[1]
        fit = f"{milliseconds(fixed)} + {milliseconds(slope)} per window"
        sent = f"{len(ranks)}, {sum(ranks) / 1e6:.1f} MB"
        cells = [milliseconds(seconds[0]), parts, fit, sent, f"{own / seconds[1]:.2f}", f"{late:.2f}"]
        updates.append([name, *cells])
    headings = ["Case", "CPU time per update", "Ratio with fewer windows", "Fit", "Exchanges"]
    rank = "Rank of two, relative to one process with half the batch"
    show([*headings, rank, "90 % quantile, relative to the median"], updates)
    gloo, exchanges = {}, []
    for count, times in ((int(count), times) for count, times in found["exchanges"].items()):
        gloo[count] = latency, rate = ring_of(count, {int(n): median(t["cpu"]) for n, t in times.items()})
        cells = [f"{1e3 * median(t['cpu']):.2f} ({1e3 * min(t['wall']):.2f})" for t in times.values()]
        exchanges.append([f"{count}", *cells, f"{1e6 * latency:.0f} us, {rate / 1e9:.2f} GB/s"])
    sizes = [f"{size:,} B" for size in SIZES]
    show(["Ranks", *sizes, "Latency per step, bytes per second and rank"], exchanges)
    rows = []
    for name, case in found["cases"].items():
        slope, fixed = fits[name]
        windows, sent = max(map(int, case["cpu_seconds"])), case["ranks"]["exchanged"]
        for count, link in gloo.items():
            compute, exchange = (
                fixed + slope * windows / count,
                sum(ring(count, size, *link) for size in sent),
            )
            gain = (fixed + slope * windows) / (compute + exchange)
            shown = [milliseconds(compute), milliseconds(exchange), f"{gain:.2f}", f"{gain / count:.0%}"]
            rows.append([name, f"{count}", *shown])
        most = (fixed + slope * windows) / (fixed + slope)
        rows.append([name, f"{windows}, free exchange", milliseconds(fixed + slope), "0", f"{most:.2f}", ""])
    show(["Case", "Ranks", "Compute", "Exchange", "Speedup", "Efficiency"], rows)
    rows = []
    for name, (hosts, between) in HOSTS.items():
        inside = ring(GPUS_OF_A_HOST, H100_BYTES, *NVLINK)
        outside = tree(hosts, H100_BYTES / GPUS_OF_A_HOST, *between) if between else 0.0
        exchange = inside + outside
        kept = H100_SECONDS / (H100_SECONDS + exchange)
        rows.append([name, f"{GPUS_OF_A_HOST * hosts}", f"{1e3 * exchange:.2f} ms", f"{kept:.0%}"])
    show(["Machines", "Ranks", "Exchange", "Efficiency with 16 windows per GPU"], rows)


def show(headings: list[str], rows: list[list[str]]) -> None:
    print("", "| " + " | ".join(headings) + " |", "|---" * len(headings) + "|", sep="\n")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def ring_of(count: int, times: dict[int, float]) -> tuple[float, float]:
    """Fit a ring to measured times. Return its latency per step in seconds, and its bytes per second."""
    sizes, seconds = np.array([*times]), np.array([*times.values()])
    steps = np.full(len(sizes), 2.0 * (count - 1))
    columns = np.stack([steps, steps * sizes / count], 1) / seconds[:, None]
    latency, inverse = np.linalg.lstsq(columns, np.ones(len(sizes)), rcond=None)[0]
    return float(latency), float(1 / inverse)


def ring(count: int, size: float, latency: float, rate: float) -> float:
    """Return the seconds of a sum of `size` bytes over a ring of `count` ranks."""
    return 2 * (count - 1) * (latency + size / count / rate)


def tree(count: int, size: float, latency: float, rate: float) -> float:
    """Return the seconds of a pipelined sum of `size` bytes up and down a tree of `count` ranks."""
    return 2 * (math.ceil(math.log2(count)) * latency + size / rate)


if __name__ == "__main__":
    {"measure": measure, "table": table}[sys.argv[1]](Path(sys.argv[2]))
