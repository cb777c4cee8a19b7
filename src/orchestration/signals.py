"""Stopping a run from outside without losing it."""

import _thread
import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

RESUME_ME_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: not an error, try again
_LOG = logging.getLogger(__name__)


class Signals:
    """What was asked of a run by signals; takes effect at the border of a step.

    SIGINT (Ctrl-C) and SIGTERM ask it to stop with a checkpoint. SIGUSR1 asks for a checkpoint, and the run
    continues. A second SIGINT calls `end`, which ends the process; without `end` it raises
    `KeyboardInterrupt`, so that the caller can clean up. A context manager that restores the handlers.
    """

    def __init__(self, end: Callable[[], object] | None = None) -> None:
        self._end = end
        self.stop = False
        self.interrupted = False
        """Whether SIGINT was among what asked it to stop."""

        self._save = False
        self._before = {}

    def take_save(self) -> bool:
        """Return whether a checkpoint was asked for since the last call."""
        if not self._save:  # one that comes after this line is for the next call
            return False
        self._save = False
        return True

    def __enter__(self) -> "Signals":
        """Take the signals; a thread other than the main one gets none."""
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Give them back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self._save = True
            _say(logging.INFO, number, "a checkpoint at the end of this step.")
            return
        if number == signal.SIGINT:
            if self.interrupted:
                if self._end:
                    self._end()
                raise KeyboardInterrupt
            self.interrupted = True
        self.stop = True
        then = " A second Ctrl-C exits immediately." if number == signal.SIGINT else ""
        _say(logging.WARNING, number, f"finishing the step and writing a checkpoint.{then}")


def _say(level: int, number: int, what: str) -> None:
    """Log from a thread: the signal may have come in the middle of a log line, and files cannot nest that."""
    # Not `threading`, whose own locks the interrupted code may hold.
    _thread.start_new_thread(_LOG.log, (level, "%s: %s", signal.Signals(number).name, what))
