"""End a process when its parent dies, even if either of them is stuck."""

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

PARENT_VARIABLE = "REVERIE_PARENT"
"""Environment variable with the id of the parent process. The program ends when the parent does."""

_RANK_VARIABLE = "TORCHELASTIC_RUN_ID"
_POLL_SECONDS = 0.5
_CONNECT_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Kill this process as soon as its parent dies. Call this before any slow import.

    This applies to the ranks of `torchrun`, to processes of `multiprocessing`, and to programs started with
    `PARENT_VARIABLE`. Other processes are unaffected.
    """
    # While a spawned process imports the main module, `parent_process` returns `None`.
    if multiprocessing.parent_process() is not None or "--multiprocessing-fork" in sys.orig_argv:
        wait = partial(_until_adopted, os.getppid())
    elif PARENT_VARIABLE in os.environ:
        wait = partial(_until_adopted, int(os.environ.pop(PARENT_VARIABLE)))
    elif _RANK_VARIABLE in os.environ:
        if sys.platform.startswith("linux"):
            # This also reaches a rank that is stopped or keeps the GIL. The kernel sends the signal when the
            # thread that started the rank ends. In torchrun, that thread only waits for its ranks.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        wait = _until_torchrun_dies
    else:
        return
    threading.Thread(target=_kill_after, args=(wait,), name="parent", daemon=True).start()


def end_even_if_stuck() -> None:
    """Let Linux kill this process with its parent, even while this process is stopped or keeps the GIL.

    Call this in a `multiprocessing` process after it has received its arguments.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    if sys.platform.startswith("linux"):
        # Windows lacks this module, but `require_posix` reports that only after the current module's import.
        import fcntl

        # A pipe signals its owner when its other end closes. PR_SET_PDEATHSIG would fire as soon as the
        # thread that started this process ends.
        pipe = parent.sentinel
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    # The parent may have died before the signal was set up.
    if not parent.is_alive():
        os.kill(os.getpid(), signal.SIGKILL)


def _kill_after(wait: Callable[[], None]) -> None:
    wait()
    os.kill(os.getpid(), signal.SIGKILL)


def _until_adopted(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)


def _until_torchrun_dies() -> None:
    """Wait until torchrun, or any process between torchrun and this one, ends."""
    import psutil

    launchers: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process().parents():
            launchers.append(process)
            try:
                # Only torchrun itself lacks the variable.
                if _RANK_VARIABLE not in process.environ():
                    break
            except psutil.AccessDenied:
                break
        # If torchrun has already died, `launchers` ends with the system's first process.
        if _is_store_gone():
            return
        while all(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in launchers):
            time.sleep(_POLL_SECONDS)


def _is_store_gone() -> bool:
    """Return whether torchrun has ended, judging by its store for the ranks of a single machine."""
    variables = os.environ
    is_kept_here = variables.get("WORLD_SIZE") == variables.get("LOCAL_WORLD_SIZE")
    if not is_kept_here or variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return False
    try:
        address = variables["MASTER_ADDR"], int(variables["MASTER_PORT"])
        socket.create_connection(address, _CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False
