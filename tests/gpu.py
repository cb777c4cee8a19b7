"""Helpers of GPU tests."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def synchronizing_is(mode: str) -> Iterator[None]:
    """Make operations inside the block that synchronize with the device an "error" or a "warn"."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
