"""How far a run is: a bar on a terminal, plain lines elsewhere."""

import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from enum import Enum

from rich import progress

from .logging import CONSOLE

_LOG = logging.getLogger(__name__)
_PACE_UPDATES = 20  # time left follows the last calls: steps before the first update are far faster


class ProgressMode(Enum):
    """Where progress is shown; members are lower case as the user types them: `logger.progress=plain`."""

    auto = "auto"
    """A bar when stderr is a terminal, else plain lines."""
    bar = "bar"
    plain = "plain"


class Progress:
    """Shows the agent step, the last return, the pace, the memory in use and the time left.

    A resumed run begins at agent step `start_step` of `total_steps`.
    """

    def __init__(
        self,
        total_steps: int,
        mode: ProgressMode = ProgressMode.auto,
        start_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_steps, self._clock = total_steps, clock
        self._pace = deque([(clock(), start_step)], maxlen=_PACE_UPDATES)
        self._bar, self._status = None, "starting"
        if mode is ProgressMode.bar or (mode is ProgressMode.auto and CONSOLE.is_terminal):
            self._bar = progress.Progress(
                progress.TextColumn("step {task.completed:,} of {task.total:,}"),
                progress.BarColumn(bar_width=20),
                progress.TaskProgressColumn(),
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

        The return is that of the last finished episode in raw units, None before the first; memory is in
        units of 1e6 bytes, `planned_mb` None where there is no plan.
        """
        self._pace.append((self._clock(), step))
        played = "no episode finished" if episode_return is None else f"return {episode_return:.4g}"
        memory = f"memory {memory_mb:,.0f}{'' if planned_mb is None else f' of {planned_mb:,.0f}'} MB"
        self._status = f"{played}, {updates_per_second:.3g} updates/s, {memory}, {self._time_left(step)}"
        if self._bar:
            self._bar.update(self._task, completed=step, description=self._status)
        else:
            done = f"step {step:,} of {self._total_steps:,} ({step / self._total_steps:.1%})"
            _LOG.info("%s, %s", done, self._status)

    def set_status(self, text: str | None) -> None:
        """Say on the bar what the run does between two calls of `update`; None shows the numbers again."""
        if self._bar:
            self._bar.update(self._task, description=text or self._status)

    def close(self) -> None:
        """Leave the bar as it stands and give the terminal back; a second call does nothing."""
        if self._bar:
            self._bar.stop()

    def _time_left(self, step: int) -> str:
        """Return the time left at the pace of the last calls."""
        before, before_step = self._pace[0]
        seconds, steps = self._clock() - before, step - before_step
        if steps <= 0:
            return "time left unknown"
        left = max(self._total_steps - step, 0) * seconds / steps
        return f"{timedelta(seconds=round(left))} left"
