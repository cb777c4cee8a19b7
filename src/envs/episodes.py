"""Track returns and lengths of episodes while they are played, and record the frames of one of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..utils.timestep import EnvSpec, TimeStep

MAX_FRAMES = 1000  # of a recorded episode: bounds the memory held


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode."""

    env: int

    episode_return: float
    """Sum of rewards, raw units, undiscounted."""

    length: int
    """Agent steps."""


class EpisodeTracker:
    """Adds up rewards and steps of N environments."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)

    def add(self, step: TimeStep) -> list[Episode]:
        """Count one record of each environment and return the episodes that it finished."""
        self._returns = np.where(step.is_first, 0.0, self._returns + step.reward)
        self._lengths = np.where(step.is_first, 0, self._lengths + 1)
        return self._episodes(step.is_last)

    def open_episodes(self, step: TimeStep) -> list[Episode]:
        """Return the sums of the episodes that continue after `step`, the last one added."""
        return self._episodes(~step.is_last)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of the open episodes."""
        return {"returns": self._returns, "lengths": self._lengths}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the sums."""
        self._returns, self._lengths = state["returns"].copy(), state["lengths"].copy()

    def _episodes(self, chosen: NDArray[np.bool_]) -> list[Episode]:
        indices = np.flatnonzero(chosen).tolist()
        return [Episode(i, float(self._returns[i]), int(self._lengths[i])) for i in indices]


class EpisodeRecorder:
    """Keeps the images of one whole episode of environment 0, on request; without images it keeps nothing."""

    def __init__(self, spec: EnvSpec, max_frames: int = MAX_FRAMES) -> None:
        self._key = next((key for key, array in sorted(spec.observation.items()) if array.is_image), None)
        self._max_frames = max_frames
        height, width = spec.observation[self._key].shape[:2] if self._key else (0, 0)
        self.planned_bytes = max_frames * height * width * 3
        self._wanted = False
        self._frames: list[NDArray[np.uint8]] | None = None

    def request(self) -> None:
        """Record the next episode from its first frame."""
        self._wanted = self._key is not None

    def add(self, step: TimeStep) -> NDArray[np.uint8] | None:
        """Keep environment 0's frame; return (time, height, width, 3) when the recorded episode ends."""
        if self._wanted and step.is_first[0]:
            self._wanted, self._frames = False, []
        if self._frames is None or self._key is None:
            return None
        image = step.observation[self._key][0].copy()  # a view would keep every environment's frame
        self._frames.append(image if image.shape[-1] == 3 else np.repeat(image[..., :1], 3, axis=-1))
        return self.cut() if step.is_last[0] or len(self._frames) >= self._max_frames else None

    def cut(self) -> NDArray[np.uint8] | None:
        """Stop recording; return (time, height, width, 3) of the frames so far, None without any."""
        frames, self._frames = np.stack(self._frames) if self._frames else None, None
        return frames

    def state_dict(self) -> dict[str, Any]:
        """Return the frames so far."""
        return {"wanted": self._wanted, "frames": None if self._frames is None else np.array(self._frames)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a recording."""
        self._wanted = state["wanted"]
        self._frames = None if state["frames"] is None else list(state["frames"].copy())
