"""Estimate the number of steps that fit a compressed replay from its current compression ratio."""

from ..buffers import EpisodeReplayBuffer
from ..utils.units import count_text, size_text

_STEADY = 0.1
"""Maximum relative change of the bytes per step between one step of the run and twice that step."""


def outlook(replay: EpisodeReplayBuffer) -> str | None:
    """Return the estimated number of steps that fit the replay, or `None` if it has no compressed records."""
    stats = replay.stats()
    if "record_bytes" not in stats:
        return None
    step_bytes, holds, capacity = stats["record_bytes"], stats["holds_steps"], replay.config.capacity
    limit = f"buffer.capacity={capacity:,}"
    end = f"; {limit} is reached first" if holds >= capacity else f", fewer than {limit}"
    room = size_text(round(step_bytes * holds))
    steps = count_text(round(float(f"{holds:.2g}")), "step")
    so_far = f"{step_bytes:,.0f} bytes per step coded so far"
    return f"{so_far}: {room} fits about {steps} of this environment{end}"


class OutlookOnce:
    """Report the outlook of a replay once it is steady, unless it was already available at the start."""

    def __init__(self, replay: EpisodeReplayBuffer) -> None:
        self._replay, self._is_given = replay, outlook(replay) is not None
        self._before: tuple[int, float] | None = None

    def __call__(self, step: int) -> str | None:
        """Return the outlook once the bytes per step match those at half the steps, otherwise `None`."""
        step_bytes = None if self._is_given else self._replay.stats().get("record_bytes")
        if step_bytes is None or (self._before and step < 2 * self._before[0]):
            return None
        before, self._before = self._before, (step, step_bytes)
        if before is None or abs(step_bytes / before[1] - 1) > _STEADY:
            return None
        self._is_given = True
        return outlook(self._replay)
