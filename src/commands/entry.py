"""Console entry points. Each imports its module when called and exits cleanly on Ctrl-C.

The checks in this module run before the slow import of torch.
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
    """Return a command that imports a module and runs its `main`."""
    return lambda: load(module)()


@exit_on_user_error()
def load(module: str, name: str = "main") -> Callable[..., Any]:
    """Import a module and return one of its functions. From then on, Ctrl-C prints a line, not a traceback.

    Raises:
        SystemExit: With code 2 if the system is not supported or an import fails.
    """
    sys.excepthook = _show
    require_posix()
    require_address_space()
    before = signal.getsignal(signal.SIGINT)
    is_default = before is signal.default_int_handler
    # A shell's background job ignores Ctrl-C, and must continue to do so.
    if is_default:
        signal.signal(signal.SIGINT, end_at_once)
    try:
        return getattr(importlib.import_module(module, __package__), name)
    except (ImportError, OSError, MemoryError) as error:
        # PyTorch raises an OSError if a shared library is missing.
        if refused := address_space_error(error):
            raise refused from error
        package = module.partition(".")[0].replace("_", "-")
        install = f"{INSTALL[:-1]}packages/{package}" if package else INSTALL
        raise UserError(f"{error}, in {sys.executable}. {install}") from error
    finally:
        if is_default:
            signal.signal(signal.SIGINT, before)


def end_at_once(*_: object, then: str = "") -> None:
    """End this process with SIGINT, so that a shell loop ends too. Libraries might catch an exception."""
    shown = f"{INTERRUPTED} without saving; {then}" if then else INTERRUPTED
    with contextlib.suppress(OSError):
        # The signal may have interrupted `sys.stderr`, so write directly. A progress bar hides the cursor.
        os.write(2, ("\x1b[?25h\n" if os.isatty(2) else "").encode() + f"{shown}\n".encode())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    # Process 1 of a container survives signals that it sends to itself.
    os._exit(128 + signal.SIGINT)


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print a line for Ctrl-C, and a traceback for any other error."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("; ".join([INTERRUPTED, *map(str, error.args)]) + "\n")
    else:
        sys.__excepthook__(kind, error, traceback)


train = command(".command_line")
evaluate = command(".evaluate")
plan = command(".plan")
certify = command(".certify")
doctor = command(".doctor")
episodes = command(".episodes")
play = command("reverie_play.command")
plot = command(".plot")
collect = command(".collect")


def export() -> Any:
    """Run `reverie-export`. With format=, another package exports the agent."""
    has_format = any(word.startswith("format=") for word in sys.argv[1:])
    return load("reverie_export.command" if has_format else ".export")()
