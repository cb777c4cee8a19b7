"""Log lines of a run: on the terminal, and in `train.log`."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

from ..durable_io import open_regular, reading
from ..errors import printable

LOG_FILE = "train.log"
CONSOLE = Console(stderr=True)
"""The one console of the process: log lines printed on it appear above a live progress bar, not inside it."""

_ROOT = logging.getLogger("reverie")
_OWN_HANDLER = "reverie:"  # handlers are found again by this prefix of their names


def configure_logging(run_dir: Path | None = None) -> Callable[[], None]:
    """Send the messages of all loggers `reverie.*`, from INFO upwards, to stderr and to `run_dir/train.log`.

    A second call replaces what the first one set up; the function that is returned undoes it. `run_dir` is
    created when missing, its `train.log` continued; None stands for stderr alone. Handlers of the root logger
    are left alone and see nothing of Reverie while this holds, so no line appears twice.

    Raises:
        UserError: If `train.log` exists and is no regular file.
    """
    _remove_own_handlers()
    handlers = {"console": _console_handler()}
    if run_dir is not None:
        run_dir.mkdir(parents=True, exist_ok=True)
        path = run_dir / LOG_FILE
        if os.path.lexists(path):
            with reading(path):
                open_regular(path).close()
        handlers["file"] = _LogFile(path, encoding="utf-8")
        handlers["file"].setFormatter(_Printable("%(asctime)s %(levelname)s %(message)s"))
    for name, handler in handlers.items():
        handler.name = _OWN_HANDLER + name
        _ROOT.addHandler(handler)
    _ROOT.setLevel(logging.INFO)
    _ROOT.propagate = False
    return _remove_own_handlers


class _Printable(logging.Formatter):
    """Drops what steers a terminal or has no place in UTF-8: names may come from files and disks."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return "\n".join(printable(line, None) for line in super().format(record).split("\n"))


class _LogFile(logging.FileHandler):
    """A log file that loses lines while its disk is full: they are also on the terminal."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Pass over a disk that cannot be written; logging would print a traceback for each line."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        """Close the file, without the lines that did not fit on the disk."""
        with contextlib.suppress(OSError):
            super().close()


def _console_handler() -> logging.Handler:
    """Return a handler for people on a terminal, and one that never breaks a line elsewhere."""
    if CONSOLE.is_terminal:
        handler = RichHandler(console=CONSOLE, show_path=False, log_time_format="[%X]")
        handler.setFormatter(_Printable())
        return handler
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    return handler


def _remove_own_handlers() -> None:
    """Undo `configure_logging`; without one before it, do nothing."""
    for handler in [h for h in _ROOT.handlers if (h.name or "").startswith(_OWN_HANDLER)]:
        _ROOT.removeHandler(handler)
        handler.close()
    _ROOT.setLevel(logging.NOTSET)
    _ROOT.propagate = True
