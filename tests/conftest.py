"""What holds for every test: one thread, a fixed seed, checked shapes, and GPU tests only on a GPU."""

import gc
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import config as jaxtyping_config

TESTS = Path(__file__).parent
pytest_plugins = ["tests.runs.fixtures"]
# Whole runs, kills, leaks, ranks and compilers: `make test-slow`. Files and folders of tests/.
SLOW = (
    "benchmarks",
    "commands/test_compiling.py",
    "commands/test_make.py",
    "commands/test_probe.py",
    "contracts/test_environments.py",
    "contracts/test_restore.py",
    "faults",
    "orchestration",
    "planning/test_address_space.py",
    "planning/test_memory_plan.py",
    "test_examples.py",
    "workflows/test_compiled.py",
    "workflows/test_ranks.py",
)
WHOLE_RUNS = ("api", "benchmarks", "checkpoints", "commands", "config", "orchestration", "planning", "play")

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, and put folders whose tests take long first, so that no worker is alone at the end.

    The longest test of all, which compiles for minutes, is the very first; then come those that mostly wait.
    """
    for item in items:
        if item.path.relative_to(TESTS).as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    files = {"test_compiled.py": 0, "test_ray_engine.py": 1}
    ranks = {name: rank for rank, name in enumerate(("workflows", "faults", *WHOLE_RUNS))}
    last = len(ranks)
    items.sort(key=lambda item: (files.get(item.path.name, 2), ranks.get(item.path.parent.name, last)))


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of every collection of garbage: that is a fifth of the suite's time.

    `gc.get_objects` does not list it then.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests marked `gpu` on a machine without CUDA, and check shapes where parts are tested.

    Whole runs go without: the same parts would be checked again, for a quarter of the runs' time.
    """
    jaxtyping_config.update("jaxtyping_disable", item.path.parent.name in WHOLE_RUNS)
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
