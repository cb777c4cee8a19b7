"""Say how many steps a compressed replay holds, as far as its codes tell."""

from ..buffers import EpisodeReplayBuffer
from ..utils.units import count_text, size_text

_STEADY = 0.1
"""Most that the bytes of a step may change, as a share, from one step of the run to twice that step."""


def outlook(replay: EpisodeReplayBuffer) -> str | None:
    """Return how many steps the codes have room for if all are like those held; None if there is no code."""
    stats = replay.stats()
    if "record_bytes" not in stats:
        return None
    step_bytes, holds, capacity = stats["record_bytes"], stats["holds_steps"], replay.config.capacity
    limit = f"buffer.capacity={capacity:,}"
    end = f"; {limit} is reached first" if holds >= capacity else f", fewer than {limit}"
    room = size_text(round(step_bytes * holds))
    steps = count_text(round(float(f"{holds:.2g}")), "step")
    so_far = f"{step_bytes:,.0f} bytes per step coded so far"
    return f"{so_far}: {room} holds about {steps} of this environment{end}"


class OutlookOnce:
    """Gives the outlook of a replay once, when it is steady; never if there was one to begin with."""

    def __init__(self, replay: EpisodeReplayBuffer) -> None:
        self._replay, self._is_given = replay, outlook(replay) is not None
        self._before: tuple[int, float] | None = None

    def __call__(self, step: int) -> str | None:
        """Return the outlook at the first step where the bytes of a step are those of half the steps."""
        step_bytes = None if self._is_given else self._replay.stats().get("record_bytes")
        if step_bytes is None or (self._before and step < 2 * self._before[0]):
            return None
        before, self._before = self._before, (step, step_bytes)
        if before is None or abs(step_bytes / before[1] - 1) > _STEADY:
            return None
        self._is_given = True
        return outlook(self._replay)
