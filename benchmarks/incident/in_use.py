"""Measure the memory that an object keeps in use: the bytes before and after its creation."""

import gc
from collections.abc import Callable
from statistics import median_low
from typing import Any

import torch
from heapwatch.counters.glibc import in_use_bytes

# A single result may be off by about 300 bytes because of blocks that the allocator caches.
_TRIALS = 5


def settled_bytes(device: torch.device) -> int:
    """Collect cycles, and return the bytes in use on a device. On a CPU, only this process's bytes count."""
    gc.collect()
    return torch.cuda.memory_allocated() if device.type == "cuda" else in_use_bytes()


def held_bytes(make: Callable[[], Any], device: torch.device) -> int:
    """Return the bytes in use while the result of `make` is kept.

    `make` is called 6 times, because the first call may allocate memory permanently. The result is the median
    of the other calls.
    """
    make()
    found = []
    for _ in range(_TRIALS):
        before = settled_bytes(device)
        kept = make()
        found.append(settled_bytes(device) - before)
        del kept
    return median_low(found)
