"""Common setup of all tests: one thread, a fixed seed, and GPU tests only on a GPU."""

import gc
import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

# These programs need libraries that are not installed with the tests.
collect_ignore = ["known_leaks"]

torch.set_num_threads(1)
# This also applies to the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

# On a busy machine, an example may need any amount of time.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Seed the global generators for each test, independent of earlier tests."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, to save a fifth of the time.

    `gc.get_objects` does not list them afterwards (see `test_heap_graphs.py`).
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def thawed() -> Iterator[None]:
    """Make all objects visible again, because `gc.freeze` has hidden the classes of test files."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests marked `gpu` on a machine without CUDA."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
