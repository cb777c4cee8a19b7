"""A watch reports child processes that grow, by PID and command, and no child that starts or copies pages."""

import json
import multiprocessing
import re
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pytest
from heapwatch.leaks import children

from .fresh import in_a_fresh_process
from .watching import KB, python, watched, write

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and reads /proc")
CONTEXTS = {"fork": multiprocessing.get_context("fork"), "spawn": multiprocessing.get_context("spawn")}
WATCH = ("-m", "heapwatch", "--report", "report", "--share", "0.5", "--seconds", "0.002", "--fail-on-leak")


def work(orders: Connection, grow: Callable[[int], None]) -> None:
    """Make a step for each number received, and send the private memory."""
    while (step := orders.recv()) >= 0:
        grow(step)
        orders.send(psutil.Process().memory_full_info().uss)


class Kept:
    """Keeps 200 kB for each step, up to a number of steps."""

    def __init__(self, most: int = 100_000) -> None:
        self.most, self.blocks = most, list[np.ndarray]()

    def __call__(self, step: int) -> None:
        if step < self.most:
            self.blocks.append(np.ones(200 * KB, np.uint8))


class Touched:
    """Allocates an array at the first step, and uses 200 kB more of it at each step."""

    def __init__(self) -> None:
        self.store = np.empty((0, 0), np.uint8)

    def __call__(self, step: int) -> None:
        if not self.store.size:
            self.store = np.empty((1_000, 200 * KB), np.uint8)
        self.store[step] = 1


class Shared:
    """Counts references to objects that are older than the fork, so that the child copies their pages."""

    def __init__(self) -> None:
        self.names = [f"a name of a file in a data set, number {number}" for number in range(300_000)]

    def __call__(self, step: int) -> None:
        for each in self.names[2_000 * step : 2_000 * (step + 1)]:
            assert each


class Result(NamedTuple):
    verdict: str
    findings: list[str]
    pids: list[int]
    growth: int
    """Growth of the first child's private memory, in bytes."""


def watch_children(method: str, growths: list[Callable[[int], None]], samples: int = 160) -> Result:
    """Watch child processes that make a step whenever this process makes one."""
    context = CONTEXTS[method]
    pipes = [context.Pipe() for _ in growths]
    inner = [pipe[1] for pipe in pipes]
    processes = [context.Process(target=work, args=each) for each in zip(inner, growths, strict=True)]
    sizes = list[int]()

    def step_all(step: int) -> None:
        for orders, _ in pipes:
            orders.send(step)
        sizes.append(next(iter([orders.recv() for orders, _ in pipes])))

    for each in processes:
        each.start()
    watch = watched(step_all, samples, threshold_mb=1.0)
    for (orders, _), process in zip(pipes, processes, strict=True):
        orders.send(-1)
        process.join()
    findings = [each.text() for each in watch.findings]
    return Result(watch.verdict, findings, [each.pid or 0 for each in processes], sizes[-1] - sizes[0])


def leak_in(method: str) -> Result:
    return watch_children(method, [Kept(), Kept(0)])


@linux_only
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_that_grows_steadily_is_a_leak_with_its_pid_and_command(method: str) -> None:
    found = in_a_fresh_process(partial(leak_in, method))
    assert found.verdict == "leak" and len(found.findings) == 1
    head, message = found.findings[0].splitlines()
    name = f"child process {found.pids[0]}"
    assert re.search(rf"leak of {name} at step \d+, \+[\d.]+ MB per 1,000 steps; at this rate", head)
    assert re.fullmatch(rf"  {name} \(python.*\) grows: [\d.]+ MB, \+2\d\d\.\d kB per step\.", message)


def two_leaks() -> Result:
    children.__dict__["_READ_SECONDS"] = 0.0
    return watch_children("fork", [Kept(), Kept()], samples=250)


@linux_only
def test_children_with_one_command_are_one_finding_although_a_sample_reads_only_one_of_them() -> None:
    found = in_a_fresh_process(two_leaks)
    assert (
        found.verdict == "leak"
        and len({each.splitlines()[0].split(" at ")[0] for each in found.findings}) == 1
    )
    assert re.search(
        r"\+2\d\d\.\d kB per step\. Other growing processes with this command: 1\.$", found.findings[-1]
    )


def children_without_a_leak() -> Result:
    return watch_children("fork", [Shared(), Touched(), Kept(70)])


@linux_only
def test_copies_on_write_memory_used_for_the_first_time_and_loading_are_no_leak() -> None:
    found = in_a_fresh_process(children_without_a_leak)
    assert found.growth > 10_000 * KB
    assert found.verdict == "flat" and not found.findings, found.findings


TRAIN = """
    import json, sys
    import psutil, torch
    from torch.utils.data import DataLoader, Dataset

    class Frames(Dataset):
        def __init__(self, length, kept_bytes):
            self.names = [f"a name of a file in a data set, number {number}" for number in range(200_000)]
            self.length, self.kept_bytes, self.kept = length, kept_bytes, []
        def __len__(self):
            return self.length
        def __getitem__(self, index):
            for name in self.names[150 * index : 150 * (index + 1)]:
                assert name
            self.kept.append(bytearray(self.kept_bytes))
            return torch.ones(8)

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    def update(batch):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    def is_seen(verdict):
        return json.load(open("report/watch.json"))["verdict"] == verdict
"""
# The workers keep part of every batch.
LEAKS_IN_WORKERS = """
    for batch in DataLoader(Frames(10**9, 50_000), 4, num_workers=2):
        update(batch)
        if is_seen("leak"):
            sys.exit()
"""
# The workers of each epoch cache its frames, and end with it.
CACHES_FOR_AN_EPOCH = """
    epochs = 0
    while epochs < 8 or not is_seen("flat"):
        epochs += 1
        for batch in DataLoader(Frames(160, 20_000), 4, num_workers=2):
            update(batch)
"""
COPIES_ON_WRITE = """
    loader = DataLoader(Frames(1_200, 0), 4, num_workers=2, persistent_workers=True)
    sizes = []
    while not is_seen("flat") or len(sizes) < 600:
        for batch in loader:
            update(batch)
            sizes.append(psutil.Process().children()[0].memory_full_info().uss)
    assert max(sizes) - min(sizes) > 2e6, sizes
"""


@linux_only
def test_workers_of_a_data_loader_that_grow_are_a_leak(tmp_path: Path) -> None:
    write(tmp_path, TRAIN + LEAKS_IN_WORKERS)
    seen = python(tmp_path, *WATCH, "train.py")
    assert seen.returncode == 1, seen.stderr
    [finding] = json.loads((tmp_path / "report" / "watch.json").read_text())["findings"]
    assert re.match(r"child process \d+ \(python train.py\) grows: ", finding["messages"][0]["text"])


@linux_only
@pytest.mark.parametrize("program", [CACHES_FOR_AN_EPOCH, COPIES_ON_WRITE], ids=["epochs", "copies"])
def test_workers_that_end_or_copy_pages_on_write_are_no_leak(program: str, tmp_path: Path) -> None:
    write(tmp_path, TRAIN + program)
    seen = python(tmp_path, *WATCH, "train.py")
    assert seen.returncode == 0, seen.stderr
    assert not json.loads((tmp_path / "report" / "watch.json").read_text())["findings"], seen.stderr
