"""Real training processes that start immediately, and their results: output, exit code, processes, files."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from .helpers import CATCH

SERVER = Path(__file__).with_name("warm_server.py")
LONG_ENOUGH_SECONDS = 600.0
"""Limit of each wait for a condition. Only failures take this long, even on a busy machine."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process."""

    code: int
    """Exit code, or the negative number of the signal that ended it."""

    out: str
    error: str

    @property
    def last_line(self) -> str:
        return self.error.splitlines()[-1]


class Process:
    """A process forked by the server, in its own session."""

    def __init__(self, pid: int, ask: Callable[[object], bytes], outputs: list[int]) -> None:
        self.pid, self._ask = pid, ask
        self._texts = [bytearray(), bytearray()]
        self._readers = [
            Thread(target=_drain, args=(output, text), daemon=True)
            for output, text in zip(outputs, self._texts, strict=True)
        ]
        for reader in self._readers:
            reader.start()
        self.code: int | None = None

    @property
    def error(self) -> str:
        """Return its stderr output so far."""
        return self._texts[1].decode()

    def send(self, *numbers: signal.Signals) -> None:
        for number in numbers:
            os.kill(self.pid, number)

    def wait_for(self, text: str, file: Path) -> None:
        """Wait until a file of a live process contains a text."""
        self.wait_until(lambda: file.exists() and text in file.read_text())

    def wait_until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONG_ENOUGH_SECONDS
        while not true():
            assert state_of(self.pid) != "Z", self.error
            assert time.monotonic() < deadline, self.error
            time.sleep(0.02)

    def end(self) -> Ended:
        """Wait until it and all its children have ended. Any remaining processes are orphans."""
        if self.code is None:
            self.code = int(self._ask({"pid": self.pid}))
        deadline = time.monotonic() + LONG_ENOUGH_SECONDS / 8
        while (left := processes_of(self.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid, _ in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"orphans: {left}"
        for reader in self._readers:
            reader.join()
        return Ended(self.code, *(text.decode() for text in self._texts))


@dataclass
class Server:
    """Starts processes."""

    connection: socket.socket

    def ask(self, request: object, outputs: list[int] | None = None) -> bytes:
        socket.send_fds(self.connection, [json.dumps(request).encode()], outputs or [])
        return self.connection.recv(100)

    def start(
        self,
        *command: str,
        folder: Path | None = None,
        file_bytes: int | None = None,
        obeys_permissions: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Start `train`, `train_as_on_macos`, `evaluate`, `plan`, `certify` or `script` with arguments.

        Args:
            command: Command line. `script` is followed by the path of a program and its arguments, which must
                not compile: torch's compiler hangs in a forked process.
            folder: Working directory.
            file_bytes: Maximal size of a file.
            obeys_permissions: Whether the process gives up root's right to ignore permissions.
            environment: Additional variables.
        """
        pipes = [os.pipe(), os.pipe()]
        request = {
            "command": command,
            "folder": str(folder or Path.cwd()),
            "file_bytes": file_bytes,
            "obeys_permissions": obeys_permissions,
            "environment": dict(environment or {}),
        }
        pid = int(self.ask(request, [theirs for _, theirs in pipes]))
        for _, theirs in pipes:
            os.close(theirs)
        return Process(pid, self.ask, [ours for ours, _ in pipes])

    def run(self, *command: str, **options: Any) -> Ended:
        """Start a process, and wait for its end."""
        return self.start(*command, **options).end()


@contextlib.contextmanager
def warm_server() -> Iterator[Server]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, str(SERVER), str(theirs.fileno()), *CATCH, "training.total_timesteps=60"]
    with (
        ours,
        subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        ) as process,
    ):
        theirs.close()
        if ours.recv(100) != b"ready":
            raise AssertionError(process.communicate()[1].decode())
        yield Server(ours)
        ours.close()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_ENOUGH_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def processes_of(session: int) -> list[tuple[int, str]]:
    """Return the process id and command line of each live process in a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(after_name[3]) == session and after_name[0] != "Z":
                found.append((int(folder.name), (folder / "cmdline").read_text().replace("\0", " ")))
    return found


def state_of(pid: int) -> str:
    """Return the state letter of a process (Z after its end)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def _drain(output: int, text: bytearray) -> None:
    with os.fdopen(output, "rb", buffering=0) as file:
        while piece := file.read(65536):
            text += piece
