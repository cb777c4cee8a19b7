"""For tests that search all objects."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def thawed() -> Iterator[None]:
    """List all objects: the suite's `gc.freeze` has taken the classes of test files from sight."""
    gc.unfreeze()
    yield
    gc.freeze()
