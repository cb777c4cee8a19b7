"""What people see of a run: log lines on the terminal and in `train.log`, and how far it is."""

import contextlib
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from rich import progress
from rich.console import Console
from rich.logging import RichHandler

from ..durable_io import open_regular, reading
from ..errors import printable

LOG_FILE = "train.log"
CONSOLE = Console(stderr=True)
"""The one console of the process: its log lines appear above a live progress bar, not inside it."""

_ROOT = logging.getLogger("reverie")
_LOG = logging.getLogger(__name__)
_OWN_HANDLER = "reverie"  # the name by which handlers are found again
_WIDE = 120  # columns that hold the bar itself and the memory as well
_SHOW_SECONDS = 0.5  # between two looks at the clock of a person
_PACE_UPDATES = 20  # time left follows the last calls: steps before the first update are far faster


def configure_logging(run_dir: Path | None = None) -> Callable[[], None]:
    """Send the messages of all loggers `reverie.*`, from INFO upwards, to stderr and to `run_dir/train.log`.

    A second call replaces the first; the function that is returned undoes it. `train.log` is continued; None
    stands for stderr alone. Handlers of the root logger see nothing of Reverie meanwhile, so no line appears
    twice. A `UserError` if `train.log` exists and is no regular file.
    """
    _remove_own_handlers()
    handlers = [_console_handler()]
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
    for handler in [each for each in _ROOT.handlers if each.name == _OWN_HANDLER]:
        _ROOT.removeHandler(handler)
        handler.close()
    _ROOT.setLevel(logging.NOTSET)
    _ROOT.propagate = True


class ProgressMode(Enum):
    """Where progress is shown; members are as the user types them: `logger.progress=plain`."""

    auto = "auto"
    """A bar when stderr is a terminal, else plain lines."""
    bar = "bar"
    plain = "plain"


class Progress:
    """Shows how far a run is, in agent steps: as a bar on a terminal, by plain lines elsewhere."""

    def __init__(
        self,
        total_steps: int,
        mode: ProgressMode = ProgressMode.auto,
        start_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_steps, self._clock = total_steps, clock
        self._shown = clock()
        self._pace = deque([(self._shown, start_step)], maxlen=_PACE_UPDATES)
        self._bar, self._status = None, "learning; numbers follow"
        self._is_wide = CONSOLE.width >= _WIDE
        if mode is ProgressMode.bar or (mode is ProgressMode.auto and CONSOLE.is_terminal):
            self._bar = progress.Progress(
                progress.SpinnerColumn(),  # moves also while nothing else can, as in a compilation
                progress.TextColumn("step {task.completed:,} of {task.total:,}"),
                *([progress.BarColumn(bar_width=20), progress.TaskProgressColumn()] if self._is_wide else []),
                progress.TextColumn("{task.description}"),
                console=CONSOLE,
                refresh_per_second=2,  # its thread shares the interpreter with the training loop
            )
            self._task = self._bar.add_task(self._status, total=total_steps, completed=start_step)
            self._bar.start()

    def update(
        self,
        step: int,
        *,
        episode_return: float | None,
        updates_per_second: float,
        memory_mb: float,
        planned_mb: float | None,
    ) -> None:
        """Show the state of the run; a plain line each, so call it at log intervals.

        The return is in raw units, None before the first episode has ended; memory is in units of 1e6 bytes.
        """
        self._shown = self._clock()
        self._pace.append((self._shown, step))
        played = "no episode finished" if episode_return is None else f"return {episode_return:.4g}"
        memory = f"memory {memory_mb:,.0f}{'' if planned_mb is None else f' of {planned_mb:,.0f}'} MB, "
        pace = f"{played}, {updates_per_second:.3g} updates/s, "
        memory = "" if self._bar and not self._is_wide else memory
        self._status = f"{pace}{memory}{self._time_left(step)}"
        if self._bar:
            self._bar.update(self._task, completed=step, description=self._status)
        else:
            done = f"step {step:,} of {self._total_steps:,} ({step / self._total_steps:.1%})"
            _LOG.info("%s, %s", done, self._status)

    def advance(self, step: int) -> None:
        """Move the bar between two updates; cheap, so call it at every step."""
        if self._bar and (now := self._clock()) - self._shown >= _SHOW_SECONDS:
            self._shown = now
            self._bar.update(self._task, completed=step)

    def set_status(self, text: str | None) -> None:
        """Say on the bar what the run does between two updates; None shows the numbers again."""
        if self._bar:
            self._bar.update(self._task, description=text or self._status)

    def close(self) -> None:
        """Leave the bar as it stands and give the terminal back; a second call does nothing."""
        if self._bar:
            self._bar.stop()

    def _time_left(self, step: int) -> str:
        before, before_step = self._pace[0]
        seconds, steps = self._clock() - before, step - before_step
        if steps <= 0:
            return "time left unknown"
        left = max(self._total_steps - step, 0) * seconds / steps
        minutes, seconds = divmod(round(left), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left"
