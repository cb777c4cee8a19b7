"""Common setup of all tests: one thread, a fixed seed, shape checks, and GPU tests only on a GPU."""

import gc
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from absl.logging import get_absl_handler
from hypothesis import HealthCheck, settings
from jaxtyping import config as jaxtyping_config

TESTS = Path(__file__).parent
pytest_plugins = ["tests.runs.fixtures"]
# Files and folders in tests/ for `make test-slow`: whole runs, kills, leaks, ranks, compilers, extras.
SLOW = (
    "benchmarks",
    "checkpoints/test_mirror.py",
    "commands/test_certify.py",
    "commands/test_compiling.py",
    "commands/test_hydra.py",
    "commands/test_make.py",
    "contracts/test_environments.py",
    "contracts/test_restore.py",
    "faults",
    "golden/test_sampling.py",
    "orchestration",
    "planning/test_address_space.py",
    "planning/test_memory_plan.py",
    "play/test_renderer.py",
    "test_examples.py",
    "test_extras.py",
    "test_site.py",
    "workflows/test_compiled.py",
    "workflows/test_ranks.py",
)
IS_SLOW_TIER = {"not gpu and not slow": False, "not gpu and slow": True}
"""Whether the `-m` expression of a `make` target selects the slow tier."""
WHOLE_RUNS = ("api", "benchmarks", "checkpoints", "commands", "config", "orchestration", "planning", "play")

# dm_control imports absl, whose handler closes its stream when logging is configured again. The stream must
# not be pytest's file for the output of tests.
get_absl_handler().python_handler.stream = sys.__stderr__
torch.set_num_threads(1)
# This also applies to the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

# On a busy machine, an example may need any amount of time.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


@pytest.fixture(autouse=True, scope="session")
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Sign runs with a key of this session instead of the user's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Seed the global generators for each test, independent of earlier tests."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def is_slow(path: Path) -> bool:
    """Return whether a test file belongs to the slow tier. All tests of heapwatch do."""
    return TESTS not in path.parents or path.relative_to(TESTS).as_posix().startswith(SLOW)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the files of the other tier, which each worker would import only to deselect their tests."""
    wanted = IS_SLOW_TIER.get(config.option.markexpr)
    if wanted is None or collection_path.suffix != ".py":
        return None
    return True if is_slow(collection_path) != wanted else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, and run folders with long tests first, to balance the workers.

    The longest test, which compiles for minutes, comes first, followed by tests that mostly wait.
    """
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)
    files = {"test_compiled.py": 0, "test_ray_engine.py": 1}
    ranks = {name: rank for rank, name in enumerate(("workflows", "faults", *WHOLE_RUNS))}
    last = len(ranks)
    items.sort(key=lambda item: (files.get(item.path.name, 2), ranks.get(item.path.parent.name, last)))


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, to save a fifth of the suite's time.

    `gc.get_objects` does not list them afterwards.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests marked `gpu` on a machine without CUDA, and check shapes in tests of components.

    Whole runs skip the checks, which would repeat those of the components and take a quarter of the time.
    """
    jaxtyping_config.update("jaxtyping_disable", item.path.parent.name in WHOLE_RUNS)
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
