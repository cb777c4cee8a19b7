"""What holds for every test: one thread, a fixed seed, and GPU tests only on a GPU."""

import gc
import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

# On a busy machine an example may take any time.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Give each test the same global random numbers, whichever tests ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of every collection of garbage, which takes a fifth of the time.

    `gc.get_objects` does not list it then; see `test_heap_graphs.py`.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def thawed() -> Iterator[None]:
    """List all objects: `gc.freeze` has taken the classes of test files from sight."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests marked `gpu` on a machine without CUDA."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
