"""Requests to stop a run with a checkpoint, made by signals, callbacks or settings."""

import _thread
import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

# EX_TEMPFAIL of sysexits.h: a temporary failure, meaning "try again".
RESUME_ME_EXIT_CODE = 75
_LOG = logging.getLogger(__name__)


class Stop(Exception):
    """Ends a run with a checkpoint if a callback of `reverie.train` or `reverie.steps` raises it."""


class Signals:
    """Context manager that records requests made by signals. The run handles them between steps.

    SIGINT (Ctrl-C) and SIGTERM ask the run to save a checkpoint and stop. SIGUSR1 asks only for a checkpoint.
    A second SIGINT calls `end`, which ends the process. Without `end` it raises `KeyboardInterrupt`, so that
    the caller can clean up. Leaving the context restores the previous handlers.
    """

    def __init__(self, end: Callable[[], object] | None = None) -> None:
        self._end = end
        self.stop = False
        self.interrupted = False
        """Whether SIGINT asked the run to stop."""

        self.finish_reason = ""
        """Why `finish` asked the run to stop, or "" if it was not called or a signal stopped the run."""

        self._save = False
        self._before = {}

    def finish(self, reason: str) -> None:
        """Ask the run to save a checkpoint and end normally, unless a signal has already stopped it."""
        if not self.stop:
            self.stop, self.finish_reason = True, reason

    def take_save(self) -> bool:
        """Return whether a checkpoint was requested since the last call."""
        # A signal that arrives after this line counts for the next call.
        if not self._save:
            return False
        self._save = False
        return True

    def __enter__(self) -> "Signals":
        """Install the handlers. This has no effect outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous handlers. This has no effect outside the main thread."""
        is_main = threading.current_thread() is threading.main_thread()
        for number, handler in self._before.items() if is_main else ():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self._save = True
            _log_signal(logging.INFO, number, "saving a checkpoint after this step.")
            return
        if number == signal.SIGINT:
            if self.interrupted:
                if self._end:
                    self._end()
                raise KeyboardInterrupt
            self.interrupted = True
        self.stop, self.finish_reason = True, ""
        then = " A second Ctrl-C exits immediately." if number == signal.SIGINT else ""
        _log_signal(logging.WARNING, number, f"finishing the step and writing a checkpoint.{then}")


def _log_signal(level: int, number: int, text: str) -> None:
    """Log from a new thread, because the signal may have interrupted a write to the log."""
    # The interrupted code may have acquired one of `threading`'s locks, so use the low-level module.
    _thread.start_new_thread(_LOG.log, (level, "%s: %s", signal.Signals(number).name, text))
