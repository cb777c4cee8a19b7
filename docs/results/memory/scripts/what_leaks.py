"""Measure the memory retained by fifty kept objects: `python what_leaks.py` (6 seconds)."""

import ctypes
import gc
import sys
import tempfile
import tracemalloc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from heapwatch.counters.glibc import in_use_bytes, kernel_counts
from heapwatch.objects.graph_holders import find_graph_holders
from torch import Tensor, nn

# In float32 these are 1 MB.
COUNT, NUMBERS = 50, 250_000
NET = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 1))
BATCH = torch.randn(1024, 64)


def line(name: str, make: Callable[[], Any]) -> None:
    """Print the MB left by `make`, left after a garbage collection, and left after dropping its result."""
    gc.collect()
    before, resident = in_use_bytes(), kernel_counts()
    kept = make()
    now = kernel_counts()
    grown = [in_use_bytes() - before, *(now[kind] - resident[kind] for kind in ("rss_anon", "rss_file"))]
    gc.collect()
    collected = in_use_bytes() - before
    del kept
    left = in_use_bytes() - before
    print(f"{name:42s}" + "".join(f"{value / 1e6:10.3f}" for value in (*grown, collected, left)))


def new_loss() -> Tensor:
    return NET(BATCH).square().mean()


def losses(after: Callable[[Tensor], object]) -> list[Tensor]:
    kept = []
    for _ in range(COUNT):
        loss = new_loss()
        after(loss)
        kept.append(loss)
    return kept


def average() -> Tensor:
    mean = torch.zeros(())
    for _ in range(COUNT):
        loss = new_loss()
        loss.backward(retain_graph=True)
        mean = 0.99 * mean + 0.01 * loss
    return mean


def cycles() -> None:
    for _ in range(COUNT):
        node: dict[str, Any] = {"data": torch.ones(NUMBERS)}
        node["self"] = node


def create_graph(break_cycle: bool) -> None:
    for _ in range(COUNT):
        weight = nn.Parameter(torch.ones(NUMBERS))
        weight.square().sum().backward(create_graph=True)
        if break_cycle:
            weight.grad = None


def fail() -> None:
    scratch = torch.ones(NUMBERS)
    raise ValueError(scratch.shape)


def exceptions() -> list[Exception]:
    kept = []
    for _ in range(COUNT):
        try:
            fail()
        except ValueError as error:
            kept.append(error)
    return kept


def mapped() -> np.ndarray:
    array = np.memmap(tempfile.TemporaryFile(), np.uint8, "w+", shape=(50_000_000,))
    array[:] = 1
    return array


def rows(copy: bool) -> list[Tensor]:
    first = [torch.ones(1000, 250)[0] for _ in range(COUNT)]
    return [row.clone() for row in first] if copy else first


def growth() -> None:
    """Print the memory retained by fifty objects of each kind."""
    print(f"{'MB':42s}    in use   RssAnon   RssFile  after gc   dropped")
    line("loss.item()", lambda: [loss.item() for loss in losses(Tensor.backward)])
    line("loss, after backward()", lambda: losses(Tensor.backward))
    line(
        "loss, after backward(retain_graph=True)",
        lambda: losses(lambda loss: loss.backward(retain_graph=True)),
    )
    line("loss, no backward()", lambda: losses(lambda loss: None))
    line("moving average of losses, graph retained", average)
    line("1 MB tensors in reference cycles", cycles)
    line("1 MB parameter, backward(create_graph=True)", lambda: create_graph(break_cycle=False))
    line("the same, then weight.grad = None", lambda: create_graph(break_cycle=True))
    line("exception, 1 MB in the frame it came from", exceptions)
    line("1 row of a 1 MB tensor", lambda: rows(copy=False))
    line("1 row of a 1 MB tensor, clone()", lambda: rows(copy=True))
    line("torch.empty of 50 MB, never touched", lambda: torch.empty(50_000_000, dtype=torch.uint8))
    line("memory-mapped file of 50 MB, written once", mapped)
    line("4,000 x 60 KB, every 100th kept", lambda: [torch.ones(15_000) for _ in range(4000)][::100])
    before = kernel_counts()["rss_anon"]
    ctypes.CDLL(None).malloc_trim(0)
    given_back = before - kernel_counts()["rss_anon"]
    print(f"malloc_trim(0) then gives back {given_back / 1e6:.1f} MB of RssAnon")


def sharing() -> None:
    """Print which objects share memory with their source."""
    episode = np.zeros((1000, 64, 64, 3), np.uint8)
    views = [episode[i : i + 50] for i in range(0, 800, 50)]
    stack = np.stack(views)
    alive = weakref.ref(episode)
    tensor = torch.from_numpy(stack.astype(np.float32))
    print("np.stack shares memory with the episode:", np.shares_memory(stack, episode))
    del views, episode
    print("episode alive while stack and tensor are kept:", alive() is not None, "of", tensor.nbytes, "bytes")
    array, loss = np.ones(4, np.float32), new_loss()
    made = {
        "np.asarray": np.asarray(array),
        "np.ascontiguousarray": np.ascontiguousarray(array),
        "astype(copy=False)": array.astype(np.float32, copy=False),
        "slice": array[1:],
        "reshape": array.reshape(2, 2),
        "fancy index": array[[0, 1]],
        "astype": array.astype(np.float32),
        "copy": array.copy(),
    }
    shared = ", ".join(name for name, other in made.items() if np.shares_memory(array, other))
    print("share memory with their array:", shared)
    print("as_tensor(array) shares memory:", torch.as_tensor(array).data_ptr() == array.ctypes.data)
    print("tensor(array) shares memory:", torch.tensor(array).data_ptr() == array.ctypes.data)
    print("autograd nodes of a loss of the network:", find_graph_holders({"loss": loss}).holders[0].nodes)
    print("as_tensor(loss) is loss:", torch.as_tensor(loss) is loss)
    print("loss.detach() shares its storage:", loss.detach().data_ptr() == loss.data_ptr())
    print("x.to('cpu') is x:", BATCH.to("cpu") is BATCH)


def instruments() -> None:
    """Print the readings of two common instruments for 40 MB."""
    tracemalloc.start()
    start = tracemalloc.get_traced_memory()[0]
    tensor = torch.ones(10_000_000)
    after_tensor = tracemalloc.get_traced_memory()[0]
    array = np.ones(10_000_000, np.float32)
    seen = (after_tensor - start) / 1e6, (tracemalloc.get_traced_memory()[0] - after_tensor) / 1e6
    print(f"tracemalloc sees {seen[0]:.1f} MB of a 40 MB tensor, {seen[1]:.1f} MB of a 40 MB array")
    print(f"sys.getsizeof of the tensor: {sys.getsizeof(tensor)} bytes, of an array {sys.getsizeof(array):,}")
    print(f"2**64 bytes are {2**64 / 2**30:.2f} GiB")


if __name__ == "__main__":
    # PyTorch warns about create_graph.
    warnings.simplefilter("ignore")
    # This creates the gradients.
    new_loss().backward()
    growth()
    sharing()
    instruments()
