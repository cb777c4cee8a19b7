"""Who runs one Gymnasium environment: this process, or a worker process that may die or hang."""

import atexit
import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper
from numpy.typing import NDArray

from .backend import EnvironmentFailed
from .wrapper import EnvMaker, Record, RecordWrapper, Request, failure_of

_READY = "ready"
_START_PATIENCE = 10
"""Times the limit of a step that a worker may take to start: it loads packages, with all others at once."""

_CLOSE_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


class Player(Protocol):
    """One environment: each request sent is answered by one record."""

    def wait_until_ready(self) -> None:
        """Wait until it can be asked.

        Raises:
            EnvironmentFailed: If its environment cannot be made over there.
        """
        ...

    def send(self, request: Request) -> None:
        """Ask for a start or an action; never fails."""
        ...

    def receive(self) -> Record:
        """Return the answer.

        Raises:
            EnvironmentFailed: If there is none; the player can only be ended then.
        """
        ...

    def dismiss(self) -> None:
        """Ask it to end, without waiting."""
        ...

    def end(self) -> None:
        """End it, by force if need be; may be called twice."""
        ...


class LocalPlayer:
    """An environment in this process, made when it is first asked; one that hangs cannot be noticed."""

    def __init__(self, maker: EnvMaker) -> None:
        self._maker = maker
        self._env: RecordWrapper | None = None
        self._request: Request = 0

    def wait_until_ready(self) -> None:
        """Nothing to wait for."""

    def send(self, request: Request) -> None:
        """Remember what to do."""
        self._request = request

    def receive(self) -> Record:
        """Do it; see `Player.receive`."""
        if self._env is None:
            try:
                self._env = self._maker()
            except Exception as error:
                raise failure_of(error) from error
        return self._env.answer(self._request)

    def render(self) -> NDArray[np.uint8]:
        """Return a picture."""
        assert self._env is not None, "reset comes first"
        return np.array(self._env.env.render(), np.uint8)

    def dismiss(self) -> None:
        """Nothing runs between calls."""

    def end(self) -> None:
        """Close the environment."""
        if self._env is not None:
            with contextlib.suppress(Exception):  # one that failed may fail to close too
                self._env.env.close()
            self._env = None


class Worker:
    """An environment in a process of its own.

    Args:
        maker: Makes the environment over there.
        name: Of the process.
        timeout: Seconds without an answer after which it counts as hung; 0 waits forever.
    """

    def __init__(self, maker: EnvMaker, name: str, timeout: float) -> None:
        # spawn: a forked worker would share the pages of replay and device with this process, and inherit the
        # locks that its threads hold
        context = multiprocessing.get_context("spawn")
        portable: Any = CloudpickleWrapper  # of any callable; its type knows makers of bare environments only
        self._pipe, theirs = context.Pipe()
        self._timeout = timeout
        self._is_ready = False
        self._process = context.Process(target=_serve, args=(portable(maker), theirs), name=name, daemon=True)
        self._process.start()
        theirs.close()
        atexit.register(self._process.kill)  # multiprocessing would wait for it forever: it ignores SIGTERM

    def wait_until_ready(self) -> None:
        """Wait until the environment is made."""
        patience = self._timeout * _START_PATIENCE
        _limit(self._pipe, patience)
        self._receive(f"its process was not ready after {patience:g} seconds", "while it started ")
        _limit(self._pipe, self._timeout)
        self._is_ready = True

    def send(self, request: Request) -> None:
        """Ask for a start or an action."""
        with contextlib.suppress(OSError):  # dead or hung: `receive` tells
            self._pipe.send(request)

    def receive(self) -> Record:
        """Return the answer; see `Player.receive`."""
        if not self._is_ready:
            self.wait_until_ready()
        return self._receive(f"its process gave no answer for env.worker_timeout={self._timeout:g} seconds")

    def _receive(self, if_late: str, when: str = "") -> Record:
        try:
            answer = self._pipe.recv()
        except BlockingIOError:
            raise EnvironmentFailed(if_late) from None
        except (EOFError, OSError):
            self._process.join(timeout=1)  # the pipe closes a moment before the exit code is known
            raise EnvironmentFailed(
                f"its process died {when}(exit code {self._process.exitcode}; a negative one is the signal"
                " that ended it, and -9 is often the system out of memory)"
            ) from None
        if isinstance(answer, EnvironmentFailed):
            raise answer
        return answer

    def dismiss(self) -> None:
        """Close the pipe: the worker ends when it next looks."""
        self._pipe.close()

    def end(self) -> None:
        """Give a dismissed worker a moment, then kill it."""
        if not self._pipe.closed:
            self._pipe.close()
            self._process.kill()
        self._process.join(timeout=_CLOSE_SECONDS)
        self._process.kill()
        self._process.join()
        atexit.unregister(self._process.kill)


def _limit(pipe: Connection, seconds: float) -> None:
    """Let reading and writing raise BlockingIOError after `seconds`; 0 never.

    The kernel does it, in the call that waits anyway: polling the pipe would cost more than the message.
    """
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.setblocking(True)  # whatever socket.setdefaulttimeout says
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def _serve(make: Callable[[], RecordWrapper], pipe: Connection) -> None:
    """Answer requests until the pipe closes; the life of a worker."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        # sent to the whole group, they are for the main process; SIG_IGN would be inherited by programs that
        # the environment starts
        signal.signal(number, lambda *_: None)
    _be_killed_with_parent()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        try:
            env = make()
        except Exception as error:
            pipe.send(failure_of(error))
            return
        try:
            pipe.send(_READY)
            while True:
                pipe.send(_answer(env, pipe.recv()))
        finally:
            env.env.close()


def _answer(env: RecordWrapper, request: Request) -> Record | EnvironmentFailed:
    try:
        return env.answer(request)
    except EnvironmentFailed as failure:
        return failure


def _be_killed_with_parent() -> None:
    """Ask Linux to kill this process when the main one is gone.

    One that is stopped, or hangs in a library and never lets another thread run, cannot end by itself.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end_with_parent() -> None:
    """End this process when the main process is gone, even if the environment hangs."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
