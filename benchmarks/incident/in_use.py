"""What an object keeps in use, measured: bytes before it is made and after."""

import gc
from collections.abc import Callable
from statistics import median_low
from typing import Any

import torch
from heapwatch.counters.glibc import in_use_bytes

_TRIALS = 5  # freed blocks that the allocator caches move single ones by some 300 bytes


def settled_bytes(device: torch.device) -> int:
    """Return the bytes in use on a device, once cycles are collected; of a CPU those of this process."""
    gc.collect()
    return torch.cuda.memory_allocated() if device.type == "cuda" else in_use_bytes()


def held_bytes(make: Callable[[], Any], device: torch.device) -> int:
    """Return the bytes that stay in use for as long as what `make` returns is kept.

    It is made 6 times: the first time something else may be allocated for good, and the median of the others
    is returned.
    """
    make()
    found = []
    for _ in range(_TRIALS):
        before = settled_bytes(device)
        kept = make()
        found.append(settled_bytes(device) - before)
        del kept
    return median_low(found)
