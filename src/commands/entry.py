"""The commands of this package: each loads what it needs once it is called, and ends calmly on Ctrl-C.

What is refused here is refused before torch is imported, which takes seconds.
"""

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..utils.errors import (
    INSTALL,
    UserError,
    address_space_error,
    exit_on_user_error,
    require_address_space,
    require_posix,
)

INTERRUPTED = "interrupted"


def command(module: str) -> Callable[[], Any]:
    """Return a command that runs the `main` of a module, which is imported then."""
    return lambda: load(module)()


@exit_on_user_error()
def load(module: str, name: str = "main") -> Callable[..., Any]:
    """Return a function of a module; what ends the process from now on is shown in one line.

    Raises:
        SystemExit: With code 2 if it cannot run on this system, or something that it imports is missing.
    """
    sys.excepthook = _show
    require_posix()
    require_address_space()
    before = signal.getsignal(signal.SIGINT)
    is_default = before is signal.default_int_handler
    if is_default:  # a shell's background job ignores Ctrl-C, and keeps to that
        signal.signal(signal.SIGINT, end_at_once)
    try:
        return getattr(importlib.import_module(module, __package__), name)
    except (ImportError, OSError, MemoryError) as error:  # OSError: a shared library that PyTorch lacks
        if refused := address_space_error(error):
            raise refused from error
        raise UserError(f"{error}, in {sys.executable}. {INSTALL}") from error
    finally:
        if is_default:
            signal.signal(signal.SIGINT, before)


def end_at_once(*_: object, then: str = "") -> None:
    """End as Ctrl-C ends a process, so that a shell's loop ends too; libraries would catch an exception."""
    shown = f"{INTERRUPTED}; {then}" if then else INTERRUPTED
    with contextlib.suppress(OSError):
        # Not by `sys.stderr`, which the signal may have interrupted. A progress bar hides the cursor.
        os.write(2, ("\x1b[?25h\n" if os.isatty(2) else "").encode() + f"{shown}\n".encode())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    os._exit(128 + signal.SIGINT)  # process 1 of a container outlives its own signals


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Show what ends a process: of Ctrl-C one line, of all else the traceback."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("; ".join([INTERRUPTED, *map(str, error.args)]) + "\n")
    else:
        sys.__excepthook__(kind, error, traceback)


train = command(".command_line")
evaluate = command(".evaluate")
plan = command(".plan")
probe = command(".probe")
certify = command(".certify")
doctor = command(".doctor")
episodes = command(".episodes")
play = command(".play")
plot = command(".plot")
export = command(".export")
collect = command(".collect")
