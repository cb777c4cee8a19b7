"""Runs `everything` of a module of tests as one of several ranks, for each number of them.

A program of its own, because what it imports may get float64 for float32, and because it forks: what a rank
costs is then what it computes, not 6 s of imports. Each rank saves what it finds.

python -m tests.runs.forked_ranks <folder> <module> float32|float64 <number of ranks>...
"""

import contextlib
import multiprocessing
import os
import random
import socket
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor

from reverie.utils.process_group import joined, started_ranks

TIMEOUT = 300.0  # seconds; a machine that is busy with other tests may keep a rank waiting


def main(folder: str, module: str, precision: str, *sizes: str) -> None:
    """Load everything once, and fork the ranks of each size, as `torchrun` would start them."""
    torch.set_num_threads(1)
    import_module("torch._dynamo")  # an optimiser would load it, for 3 s in each rank
    with float64_for_float32() if precision == "float64" else contextlib.nullcontext():
        everything = import_module(module).everything
    forks = multiprocessing.get_context("fork")
    for size in map(int, sizes):
        run = {
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        ranks = [
            forks.Process(target=be_rank, args=(everything, folder, index, run)) for index in range(size)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        assert not any(rank.exitcode for rank in ranks)


@contextlib.contextmanager
def float64_for_float32() -> Iterator[None]:
    """Give what is imported in here float64 for float32, for good; torch and its compiler keep their own."""
    wide = ModuleType("torch")
    vars(wide).update(vars(torch), float32=torch.float64)
    torch.Tensor.float = torch.Tensor.double
    FunctionalTensor.float = FunctionalTensor.double  # stands for a tensor that is compiled
    torch.set_default_dtype(torch.float64)
    sys.modules["torch"] = wide
    try:
        yield
    finally:
        sys.modules["torch"] = torch


def be_rank(everything: Any, folder: str, index: int, run: dict[str, str]) -> None:
    """Save what this rank finds, and end without goodbye: in some tests nobody is left to say it to."""
    os.environ |= run | {"RANK": str(index), "LOCAL_RANK": str(index)}
    with joined(started_ranks(), TIMEOUT) as ranks:
        torch.save(everything(ranks), Path(folder) / f"{ranks.size}_{index}.pt")
        os._exit(0)


def free_port() -> int:
    """Return a port of this machine that nothing listens on, below those that connections are given."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


if __name__ == "__main__":
    main(*sys.argv[1:])
