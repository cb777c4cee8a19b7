"""A run with files of every kind in its checkpoint, and a copy that may be modified."""

import shutil
from pathlib import Path

import pytest

from ..runs.fixtures import started_once
from ..runs.forged import SHORT


@pytest.fixture(scope="session")
def good_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 steps. Tests must not change them."""
    return started_once(tmp_path_factory, "short", *SHORT)


@pytest.fixture
def run_dir(good_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good_run, tmp_path / "run")
