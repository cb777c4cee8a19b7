"""Stopping a run from outside without losing it."""

import logging
import signal
from types import FrameType

RESUME_ME_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: not an error, try again
_LOG = logging.getLogger(__name__)


class StopRequest:
    """True once SIGINT (Ctrl-C) or SIGTERM came; a second SIGINT stops at once.

    A context manager; the handlers of before return with its end.
    """

    def __init__(self) -> None:
        self._stopped = False
        self._before = {}

    def __bool__(self) -> bool:
        return self._stopped

    def __enter__(self) -> "StopRequest":
        """Take the signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Give them back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._stopped and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._stopped = True
        _LOG.warning("%s: finishing the step and writing a checkpoint.", signal.Signals(number).name)
