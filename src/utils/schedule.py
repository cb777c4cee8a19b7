"""Schedules measured in agent steps."""

import sys


class Every:
    """Returns True once per `interval` steps. An interval of 0 is never due.

    >>> due = Every(10)
    >>> [step for step in range(0, 40, 4) if due(step)]
    [12, 20, 32]
    """

    def __init__(self, interval: int, start: int = 0) -> None:
        self.interval = interval
        self._last = start // interval if interval else 0

    def __call__(self, step: int) -> bool:
        """Return whether `step` has reached a new multiple of the interval since the last call."""
        if not self.interval or step // self.interval <= self._last:
            return False
        self._last = step // self.interval
        return True


class UpdateRatio:
    """Number of updates due for the agent steps taken: train_ratio / (batch_size * sequence_length) per step.

    Counts stay exact over any number of calls. Updates beyond `max_owed` in a single call are dropped.

    >>> owed = UpdateRatio(0.25, max_owed=8)
    >>> [owed(step) for step in (100, 102, 104, 108, 1000)]
    [1, 0, 1, 1, 8]
    >>> owed(1016, most=3), owed.backlog, owed(1016)
    (3, 1, 1)
    """

    def __init__(self, updates_per_step: float, max_owed: int) -> None:
        self.updates_per_step = updates_per_step
        self.max_owed = max_owed
        self._start_step: float | None = None
        self._paid = 0
        self.backlog = 0
        """Number of updates that the last call postponed."""

    def __call__(self, step: int, most: int = sys.maxsize) -> int:
        """Return the number of updates due at `step`. The first call returns 1, regardless of earlier steps.

        Updates beyond `most` are postponed.
        """
        if self._start_step is None:
            self._start_step = step
            return 1
        # Counting from a fixed step avoids the drift of summed fractions. The small term compensates for the
        # rounding of ratios such as 1/3.
        total = int((step - self._start_step) * self.updates_per_step + 1e-6)
        owed, self._paid = total - self._paid, total
        if owed > self.max_owed:
            self._start_step, self._paid, owed = step, 0, self.max_owed
        self.backlog = max(0, owed - most)
        self._paid -= self.backlog
        return owed - self.backlog

    def state_dict(self) -> dict[str, float | None]:
        """Return the update count and its ratio."""
        ratio = self.updates_per_step
        return {"start_step": self._start_step, "paid": self._paid, "updates_per_step": ratio}

    def load_state_dict(self, state: dict[str, float | None]) -> None:
        """Restore the update count, or restart it if the ratio changed."""
        if state["updates_per_step"] == self.updates_per_step:
            self._start_step, self._paid = state["start_step"], int(state["paid"] or 0)
