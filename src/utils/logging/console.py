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
LEARNING = "learning"
"""The phase in which a run stays to its end."""

CONSOLE = Console(stderr=True)
"""The one console of the process: its log lines appear above a live progress bar, not inside it."""

_ROOT = logging.getLogger("reverie")
_LOG = logging.getLogger(__name__)
_OWN_HANDLER = "reverie"  # the name by which handlers are found again
_PACE_UPDATES = 20  # time left follows the last calls
_UNKNOWN = "time left unknown"  # before updates are measured: steps without one are far faster
_LIVE_SECONDS = 2.0  # between two looks at the pace of now
_SURE_SECONDS, _SURE_UPDATES = 20.0, 20  # before a pace is told as hours
_BAR, _NARROW_BAR, _WIDE = 20, 6, 110  # columns


def configure_logging(run_dir: Path | None = None, quiet: bool = False) -> Callable[[], None]:
    """Send the messages of all loggers `reverie.*`, from INFO upwards, to stderr and to `run_dir/train.log`.

    A second call replaces the first; the function that is returned undoes it. `train.log` is continued; None
    stands for stderr alone, which shows warnings only if `quiet`. Handlers of the root logger see nothing of
    Reverie meanwhile, so no line appears twice. A `UserError` if `train.log` exists and is no regular file.
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
        self._pace = deque([(clock(), start_step)], maxlen=_PACE_UPDATES)
        self._live: deque[tuple[float, int, int]] = deque(maxlen=_PACE_UPDATES)
        self._phase, self._has_told = "starting", False
        self._has_learned = False
        self._played = self._memory = ""
        self._bar = None
        if mode is ProgressMode.bar or (mode is ProgressMode.auto and CONSOLE.is_terminal):
            bar_width = _BAR if CONSOLE.width >= _WIDE else _NARROW_BAR
            self._room = len(f"{total_steps:,} of {total_steps:,}") + bar_width + len("* 100%  ") + 2
            self._bar = progress.Progress(
                progress.SpinnerColumn(),  # moves when nothing else does
                progress.TextColumn("{task.completed:,} of {task.total:,}"),
                progress.BarColumn(bar_width),
                progress.TaskProgressColumn(),
                progress.TextColumn("{task.description}", markup=False),
                console=CONSOLE,
                refresh_per_second=2,  # its thread shares the interpreter with the training loop
            )
            self._task = self._bar.add_task(self._phase, total=total_steps, completed=start_step)
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
        self._has_learned |= updates_per_second > 0
        if not self._has_learned:
            self._pace.clear()
        self._pace.append((self._clock(), step))
        self._played = "no episode finished" if episode_return is None else f"return {episode_return:.4g}"
        self._memory = f"memory {memory_mb:,.0f}{'' if planned_mb is None else f' of {planned_mb:,.0f}'} MB"
        left = self._time_left(*self._pace[0], step)
        if self._bar:
            self._describe(step, f"{updates_per_second:.3g} updates/s", left)
        else:
            done = f"step {step:,} of {self._total_steps:,} ({step / self._total_steps:.1%})"
            words = f"{self._played}, {updates_per_second:.3g} updates/s, {self._memory}, {left}"
            _LOG.info("%s, %s", done, words)

    def advance(self, step: int, updates: int, phase: str, caveat: str = "") -> None:
        """Move the bar; say once in each phase with updates how long the run will take at the pace of now.

        Cheap: call it at every step. `phase` names what the run does, `caveat` what changes its pace later.
        `updates` are those so far.
        """
        now = self._clock()
        if phase != self._phase:
            self._phase, self._has_told = phase, False
            self._live.clear()
        if self._live and now - self._live[-1][0] < _LIVE_SECONDS:
            if self._bar:
                self._bar.update(self._task, completed=step)
            return
        self._live.append((now, step, updates))
        then, then_step, then_updates = self._live[0]
        seconds, made = now - then, updates - then_updates
        pace = f"{made / seconds:.3g} updates/s" if made and seconds else phase
        if self._bar:
            is_pace = updates > 0 or phase == LEARNING  # some learn without updates
            self._describe(step, pace, self._time_left(then, then_step, step) if is_pace else _UNKNOWN)
        if not self._has_told and made >= _SURE_UPDATES and seconds >= _SURE_SECONDS:
            self._has_told = True
            left = (self._total_steps - step) * seconds / max(step - then_step, 1)
            text = "%s at %.2g updates a second: the remaining %s steps take about %s%s"
            steps = f"{self._total_steps - step:,}"
            _LOG.info(text, phase, made / seconds, steps, _rough(left), caveat and f"; {caveat}")

    def set_status(self, text: str | None) -> None:
        """Say on the bar what the run does between two updates; None for an end of it."""
        self._live.clear()  # what it took is no pace
        if self._bar:
            self._bar.update(self._task, description=text or self._phase)

    def _describe(self, step: int, pace: str, left: str) -> None:
        """Show the numbers, as many as there is room for."""
        assert self._bar
        parts = [part for part in (self._played, pace, self._memory, left) if part]
        room = CONSOLE.width - self._room
        for dropped in (self._memory, self._played, left):
            if len(", ".join(parts)) <= room:
                break
            if dropped in parts:
                parts.remove(dropped)
        self._bar.update(self._task, completed=step, description=", ".join(parts))

    def close(self) -> None:
        """Leave the bar as it stands and give the terminal back; a second call does nothing."""
        if self._bar:
            self._bar.stop()

    def _time_left(self, before: float, before_step: int, step: int) -> str:
        seconds, steps = self._clock() - before, step - before_step
        steps_left = max(self._total_steps - step, 0)
        if steps <= 0 < steps_left:
            return _UNKNOWN
        minutes, left = divmod(round(steps_left * seconds / max(steps, 1)), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{left:02} left"


def _rough(seconds: float) -> str:
    """Return a time with two digits, in the unit that people would use."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.2g} hours"
