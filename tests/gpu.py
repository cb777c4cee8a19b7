"""What tests of a GPU share."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def synchronizing_is(mode: str) -> Iterator[None]:
    """Inside the block, an operation that makes the host wait for the device is an "error" or a "warn"."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
