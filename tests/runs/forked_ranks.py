"""Run `everything` of a test module as one of several ranks, for several numbers of ranks.

This is a separate program, because its imports may get float64 for float32, and because it forks, so that a
rank costs only its computation and not 6 s of imports. Each rank saves its results.

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

# In seconds. On a machine that is busy with other tests, a rank may wait.
TIMEOUT = 300.0


def main(folder: str, module: str, precision: str, *sizes: str) -> None:
    """Load everything once, and fork the ranks of each size with the environment of `torchrun`."""
    torch.set_num_threads(1)
    # A compiling rank would import it again, and with float64 for float32.
    if module.endswith("_compiled"):
        import_module("torch._dynamo")
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
    """Give modules imported in this block float64 for float32, permanently. torch is unaffected."""
    wide = ModuleType("torch")
    vars(wide).update(vars(torch), float32=torch.float64)
    torch.Tensor.float = torch.Tensor.double
    # This class represents a tensor during compilation.
    FunctionalTensor.float = FunctionalTensor.double
    torch.set_default_dtype(torch.float64)
    sys.modules["torch"] = wide
    try:
        yield
    finally:
        sys.modules["torch"] = torch


def be_rank(everything: Any, folder: str, index: int, run: dict[str, str]) -> None:
    """Save the results of this rank, and exit without a shutdown, for which other ranks may be gone."""
    os.environ |= run | {"RANK": str(index), "LOCAL_RANK": str(index)}
    with joined(started_ranks(), TIMEOUT) as ranks:
        torch.save(everything(ranks), Path(folder) / f"{ranks.size}_{index}.pt")
        os._exit(0)


def free_port() -> int:
    """Return an unused port of this machine, below the range of outgoing connections."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


if __name__ == "__main__":
    main(*sys.argv[1:])
