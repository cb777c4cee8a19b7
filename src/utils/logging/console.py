"""Log lines on the terminal and in `train.log`, and the progress display of a run."""

import contextlib
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from threading import Event, Thread

from rich import progress
from rich.console import Console
from rich.logging import RichHandler

from ..durable_io import open_regular, reading
from ..errors import printable
from ..units import count_text, memory_text
from .config import ProgressMode

LOG_FILE = "train.log"
LEARNING = "learning"
"""The last phase of a run."""

CONSOLE = Console(stderr=True)
"""The process's only console, so that log lines appear above a live progress bar instead of inside it."""

_ROOT = logging.getLogger("reverie")
_LOG = logging.getLogger(__name__)
_OWN_HANDLER = "reverie"
# rich stores at most 1,000 speed samples.
_PACE_SECONDS, _SAMPLE_SECONDS = 600.0, 0.6
# Number of updates before the time left is estimated, and seconds before the estimate is first logged.
_KNOWN_UPDATES, _SURE_SECONDS = 5, 20.0
_UNKNOWN = "time left unknown"
# This guarantees a line every 30 seconds, even on a busy machine.
_SILENT_SECONDS = 25.0
# Widths in columns.
_BAR, _NARROW_BAR, _WIDE = 20, 6, 110


def configure_logging(run_dir: Path | None = None, quiet: bool = False) -> Callable[[], None]:
    """Send messages of level INFO and above from all `reverie.*` loggers to stderr and `run_dir/train.log`.

    Calling this again replaces the handlers, and the returned function removes them. Lines are appended to
    `train.log`. Without `run_dir`, messages only go to stderr. With `quiet`, stderr only shows warnings. The
    root logger's handlers do not receive Reverie's messages, so lines are not duplicated.

    Raises:
        UserError: If `train.log` exists and is not a regular file.
    """
    _remove_own_handlers()
    handlers = [_console_handler()]
    handlers[0].setLevel(logging.WARNING if quiet else logging.INFO)
    if run_dir is not None:
        run_dir.mkdir(parents=True, exist_ok=True)
        path = run_dir / LOG_FILE
        if os.path.lexists(path):
            with reading(path):
                open_regular(path).close()
        handlers.append(_LogFile(path, encoding="utf-8"))
        handlers[-1].setFormatter(_Printable("%(asctime)s %(levelname)s %(message)s"))
    for handler in handlers:
        handler.name = _OWN_HANDLER
        _ROOT.addHandler(handler)
    _ROOT.setLevel(logging.INFO)
    _ROOT.propagate = False
    return _remove_own_handlers


class _Printable(logging.Formatter):
    """Replaces control and unencodable characters, because messages may contain file names."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return "\n".join(printable(line, None) for line in super().format(record).split("\n"))


class _LogFile(logging.FileHandler):
    """A log file that drops lines while its disk is full. The terminal still shows them."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore a failing disk. By default, logging prints a traceback for each line."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        """Close the file and drop lines that did not fit on the disk."""
        with contextlib.suppress(OSError):
            super().close()


def _console_handler() -> logging.Handler:
    """Return a rich handler on a terminal, or a plain one that never wraps lines."""
    if CONSOLE.is_terminal:
        handler = RichHandler(console=CONSOLE, show_path=False, log_time_format="[%X]")
        handler.setFormatter(_Printable())
        return handler
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    return handler


def _remove_own_handlers() -> None:
    for handler in [each for each in _ROOT.handlers if each.name == _OWN_HANDLER]:
        _ROOT.removeHandler(handler)
        handler.close()
    _ROOT.setLevel(logging.NOTSET)
    _ROOT.propagate = True


def shows_bar(mode: ProgressMode) -> bool:
    """Return whether progress is shown as a bar."""
    return mode is ProgressMode.bar or (mode is ProgressMode.auto and CONSOLE.is_terminal)


class Heartbeat(logging.Handler):
    """Context manager that logs the run's activity after `seconds` without another log line."""

    def __init__(self, seconds: float = _SILENT_SECONDS) -> None:
        super().__init__()
        self._seconds, self._last = seconds, time.monotonic()
        self._is_over = Event()
        self._thread = Thread(target=self._beat, name="heartbeat", daemon=True)
        self.describe: Callable[[], str] = partial(still, "starting", self._last)
        """Returns the line to log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Note the time of a log line."""
        self._last = time.monotonic()

    def __enter__(self) -> "Heartbeat":
        """Start the thread."""
        _ROOT.addHandler(self)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread."""
        self._is_over.set()
        self._thread.join()
        _ROOT.removeHandler(self)

    def _beat(self) -> None:
        while not self._is_over.wait(max(0.0, self._last + self._seconds - time.monotonic())):
            if time.monotonic() - self._last >= self._seconds:
                _LOG.info(self.describe())
                # `emit` is not called while the program has disabled logging.
                self._last = time.monotonic()


def still(words: str, began: float) -> str:
    """Return an activity with the seconds since `began`, a `time.monotonic` value."""
    return f"still {words}, {time.monotonic() - began:.0f} s"


class Progress:
    """Shows a run's progress in agent steps, as a bar on a terminal and as plain lines elsewhere.

    Plain lines also show the environment steps if `action_repeat` is above 1.
    """

    def __init__(
        self,
        total_steps: int,
        mode: ProgressMode = ProgressMode.auto,
        start_step: int = 0,
        action_repeat: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_steps, self._clock, self._sampled = total_steps, clock, -math.inf
        self._step, self._first_update, self._action_repeat = start_step, 0, action_repeat
        self._phase, self._has_logged_pace, self._is_last_phase = "starting", False, False
        self._status: tuple[str, float] | None = None
        self._played = self._memory = ""
        bar_width = _BAR if CONSOLE.width >= _WIDE else _NARROW_BAR
        self._taken = len(f"{total_steps:,} of {total_steps:,}") + bar_width + len("* 100%  ") + 2
        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.completed:,} of {task.total:,}"),
            progress.BarColumn(bar_width),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.description}", markup=False),
            console=CONSOLE,
            # The refresh thread competes with the training loop for the interpreter.
            refresh_per_second=2,
            get_time=clock,
            disable=not shows_bar(mode),
        )
        self._bar.add_task(self._phase, total=total_steps, completed=start_step)
        self._bar.add_task("updates", total=None, visible=False)
        self._steps, self._updates = self._bar.tasks
        self._bar.start()

    def update(
        self,
        step: int,
        *,
        returns: Collection[float],
        updates_per_second: float,
        memory_mb: float,
        planned_mb: float | None,
    ) -> None:
        """Show the run's state. Call this once per log interval, because plain mode logs a line per call.

        `returns` are the raw returns of the last finished episodes. Their mean is shown. Memory is passed
        in MB of 1e6 bytes and shown in MiB or GiB, like the plan.
        """
        self._step = min(step, self._total_steps)
        self._bar.update(self._steps.id, completed=self._step)
        self._played, counted = "no episode finished", ""
        if returns:
            self._played = f"return {sum(returns) / len(returns):.4g}"
            counted = f" (mean of {count_text(len(returns), 'episode')})"
        self._memory = f"memory {memory_text(memory_mb, planned_mb)}"
        pace = _pace_text(updates_per_second)
        self._describe(pace)
        if self._bar.disable:
            parts = (self._done(), self._played + counted, pace, self._memory, self._time_left())
            _LOG.info(", ".join(parts))

    def advance(self, step: int, updates: int, phase: str, until: int | None = None) -> None:
        """Update the bar, and log the estimated time left once in each phase.

        This is cheap, so call it at every step. `updates` is the number of updates so far. `phase` describes
        the activity up to step `until`, which is `None` for the last phase. The last phase is the slowest, so
        earlier phases give a lower bound on the time left.
        """
        self._step, self._is_last_phase = min(step, self._total_steps), until is None
        if phase != self._phase:
            self._phase, self._has_logged_pace = phase, False
            self._forget_pace(updates)
        now, before = self._clock(), self._sampled
        if now - before < _SAMPLE_SECONDS:
            return
        self._sampled = now
        # A speed needs two samples, however long a population's generation is.
        self._bar.speed_estimate_period = max(_PACE_SECONDS, 3 * (now - before))
        self._bar.advance(self._steps.id, self._step - self._steps.completed)
        self._bar.advance(self._updates.id, updates - self._updates.completed)
        pace = _pace_text(self._updates.speed) if self._updates.speed else ""
        self._describe(pace or phase)
        is_sure = pace and (self._steps.elapsed or 0.0) >= _SURE_SECONDS
        if is_sure and not self._has_logged_pace and (left := self._time_left()) != _UNKNOWN:
            self._has_logged_pace = True
            _LOG.info("%s at %s: %s", phase, pace, left)

    def set_status(self, text: str | None, *, is_once: bool = False) -> None:
        """Show an activity between two updates, or clear it with `None`.

        With `is_once`, the speed excludes the time of this activity, because it is not repeated.
        """
        self._status = (text, time.monotonic()) if text else None
        if is_once:
            self._forget_pace(self._updates.completed)
        self._bar.update(self._steps.id, description=text or self._phase)

    def describe(self) -> str:
        """Return the current activity and progress of the run."""
        doing = still(*self._status) if self._status else self._phase
        return f"{self._done()}, {doing}, {self._time_left()}"

    def _done(self) -> str:
        done = f"step {self._step:,} of {self._total_steps:,} ({self._step / self._total_steps:.1%})"
        repeat = self._action_repeat
        return done if repeat == 1 else f"{done}, {count_text(self._step * repeat, 'environment step')}"

    def _forget_pace(self, updates: float) -> None:
        """Restart the speed estimate at the next step, after this many updates."""
        self._bar.reset(self._steps.id, completed=self._step)
        self._bar.reset(self._updates.id, completed=int(updates))
        self._first_update, self._sampled = updates, -math.inf

    def _describe(self, pace: str) -> None:
        """Show as many numbers as fit on the terminal."""
        words = [self._played, pace, self._memory, self._time_left()]
        # The memory is dropped first, then the return, then the time left.
        for dropped in (2, 0, 1):
            if len(", ".join(filter(None, words))) > CONSOLE.width - self._taken:
                del words[dropped]
        self._bar.update(self._steps.id, description=", ".join(filter(None, words)))

    def close(self) -> None:
        """Stop the bar and restore the terminal. Calling this again has no effect."""
        if not self._bar.disable:
            self._bar.update(self._steps.id, completed=self._step)
            # The terminal may be closed, but the run is not over yet.
            with contextlib.suppress(OSError):
                self._bar.stop()

    def _time_left(self) -> str:
        seconds = self._steps.time_remaining if self._steps.remaining else 0
        is_known = self._updates.completed >= self._first_update + _KNOWN_UPDATES
        # Some populations evolve without updates.
        if not self._updates.completed:
            is_known = self._is_last_phase
        if seconds is None or (seconds and not is_known):
            return _UNKNOWN
        minutes, rest = divmod(int(seconds), 60)
        bound = "" if self._is_last_phase or not seconds else "at least "
        return f"{bound}{minutes // 60}:{minutes % 60:02}:{rest:02} left"


def _pace_text(updates_per_second: float) -> str:
    """Format a speed: "1 update/s" or "0.5 updates/s"."""
    return count_text(float(f"{updates_per_second:.3g}"), "update") + "/s"
