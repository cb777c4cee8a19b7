"""An empty working folder, and runs that several test files share. Tests must not change the runs."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from .helpers import CARTPOLE, CATCH, PONG, start
from .s3_server import S3Server
from .warm import Server, warm_server


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in its own empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def pong_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 60 steps of one emulator, with 27 updates."""
    return started_once(tmp_path_factory, "pong", *PONG)


@pytest.fixture(scope="session")
def cartpole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 300 steps of one environment without images, with checkpoints at 150 and 300."""
    return started_once(tmp_path_factory, "cartpole", *CARTPOLE)


@pytest.fixture(scope="session")
def catch_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 300 steps of four environments with images."""
    return started_once(tmp_path_factory, "catch", *CATCH)


def started_once(folders: pytest.TempPathFactory, name: str, *overrides: str) -> Path:
    """Create a run that all processes of the test session share."""
    return made_once(folders, name, lambda folder: start(folder, *overrides))


def made_once(folders: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> Path:
    """Return a folder that all processes of the test session share. The first user creates it."""
    base = folders.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(shared.with_suffix(".lock")):
        if not (shared / "finished").exists():
            make(shared / "run")
            (shared / "finished").touch()
    return shared / "run"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Start a server that starts training processes without the time for imports."""
    with warm_server() as started:
        yield started


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Start a real server. Tests that share it name their runs differently."""
    started = S3Server()
    yield started
    started.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Return the server, with its address and credentials in the environment."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server
