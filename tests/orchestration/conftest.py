"""An empty folder to run in, and runs that several files of tests look at; no test may change one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .helpers import CARTPOLE, CATCH, PONG, start
from .s3_server import S3Server
from .warm import Server, warm_server


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def pong_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 steps of one emulator, with 27 updates."""
    return start(tmp_path_factory.mktemp("pong") / "run", *PONG)


@pytest.fixture(scope="session")
def cartpole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 steps of one environment without images, checkpoints at 150 and 300."""
    return start(tmp_path_factory.mktemp("cartpole") / "run", *CARTPOLE)


@pytest.fixture(scope="session")
def catch_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 steps of four environments with images."""
    return start(tmp_path_factory.mktemp("catch") / "run", *CATCH)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Starts training processes that need no seconds for imports."""
    with warm_server() as started:
        yield started


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real server, shared by tests whose runs have names of their own."""
    started = S3Server()
    yield started
    started.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with what leads to it in the environment."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server
