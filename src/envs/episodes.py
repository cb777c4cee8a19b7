"""Track the returns and lengths of running episodes, and record the frames of one episode."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..utils.timestep import EnvSpec, TimeStep
from .spaces import as_array

# Maximum length of a recording, in frames, and maximum longer side of its rendered images, in pixels.
MAX_FRAMES = 1000
RENDERED_SIDE = 128


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode."""

    env: int

    episode_return: float
    """Undiscounted sum of rewards, in raw units."""

    length: int
    """Number of agent steps."""

    info: dict[str, float] = field(default_factory=dict)
    """Numbers that the environment reported with the last step, by name."""


def reported(numbers: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return numbers by name, without missing ones (NaN)."""
    return {name: float(number) for name, number in numbers if not math.isnan(number)}


class EpisodeTracker:
    """Sums the rewards and steps of N environments."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)

    def add(self, step: TimeStep, envs: NDArray[np.int64] | None = None) -> list[Episode]:
        """Count one record per environment (default: all). Return the episodes that finished."""
        envs = np.arange(self.num_envs) if envs is None else envs
        self._returns[envs] = np.where(step.is_first, 0.0, self._returns[envs] + step.reward)
        self._lengths[envs] = np.where(step.is_first, 0, self._lengths[envs] + 1)
        ended = [row for row in np.flatnonzero(step.is_last).tolist() if row not in step.failed]
        infos = (reported((name, values[row]) for name, values in step.info.items()) for row in ended)
        return [self._episode(int(envs[row]), info) for row, info in zip(ended, infos, strict=True)]

    def open_episodes(self, step: TimeStep) -> list[Episode]:
        """Return the sums of the episodes that are still open after `step`, the last added record(s)."""
        ended = np.flatnonzero(step.is_last) if step.envs is None else step.envs
        return [self._episode(env, {}) for env in np.setdiff1d(np.arange(self.num_envs), ended).tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of the open episodes."""
        return {"returns": self._returns.copy(), "lengths": self._lengths.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a result of `state_dict`."""
        self._returns, self._lengths = state["returns"].copy(), state["lengths"].copy()

    def _episode(self, env: int, info: dict[str, float]) -> Episode:
        return Episode(env, float(self._returns[env]), int(self._lengths[env]), info)


class EpisodeRecorder:
    """Records the images of one complete episode of environment 0 on request.

    Without image observations, downscaled results of `render` are recorded. Without either, recording is
    disabled.
    """

    def __init__(
        self,
        spec: EnvSpec,
        max_frames: int = MAX_FRAMES,
        render: Callable[[], NDArray[np.uint8] | None] | None = None,
        rendered_side: int = RENDERED_SIDE,
    ) -> None:
        self._key = next((key for key, array in sorted(spec.observation.items()) if array.is_image), None)
        self._max_frames = max_frames
        self._render = render if spec.renders and self._key is None else None
        self._side = rendered_side
        height = width = rendered_side if self._render else 0
        if self._key:
            height, width = spec.observation[self._key].shape[:2]
        self.planned_bytes = max_frames * height * width * 3
        self._wanted = False
        self._frames: list[NDArray[np.uint8]] | None = None

    def request(self) -> None:
        """Record the next episode from its first frame."""
        self._wanted = self._key is not None or self._render is not None

    def give_up(self) -> None:
        """Delete all frames and stop rendering."""
        self._render, self._frames, self._wanted = None, None, False

    def add(self, step: TimeStep) -> NDArray[np.uint8] | None:
        """Record environment 0's frame. When the episode ends, return all frames (time, height, width, 3)."""
        if self._wanted and step.is_first[0]:
            self._wanted, self._frames = False, []
        if self._frames is None:
            return None
        image = self._image(step)
        # Rendering may have called `give_up`.
        if self._frames is None:
            return None
        if image is not None:
            self._frames.append(image if image.shape[-1] == 3 else np.repeat(image[..., :1], 3, axis=-1))
        return self.cut() if step.is_last[0] or len(self._frames) >= self._max_frames else None

    def _image(self, step: TimeStep) -> NDArray[np.uint8] | None:
        """Return the image of environment 0."""
        if self._key is not None:
            # A view would keep the frames of all environments in memory.
            return as_array(step.observation[self._key][0]).copy()
        drawn = self._render() if self._render else None
        if drawn is None or not self._frames:
            return None if drawn is None else _smaller(drawn, self._side)
        height, width = self._frames[0].shape[:2]
        return np.array(Image.fromarray(drawn).resize((width, height), Image.Resampling.BOX))

    def cut(self) -> NDArray[np.uint8] | None:
        """Stop recording. Return all frames (time, height, width, 3), or `None` if there are no frames."""
        frames, self._frames = np.stack(self._frames) if self._frames else None, None
        return frames

    def state_dict(self) -> dict[str, Any]:
        """Return the recording in progress."""
        return {"wanted": self._wanted, "frames": np.array(self._frames) if self._frames else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a result of `state_dict`."""
        self._wanted = state["wanted"]
        self._frames = None if state["frames"] is None else list(state["frames"].copy())


def _smaller(picture: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Downscale a picture so that its longer side has at most `side` pixels."""
    image = Image.fromarray(picture)
    image.thumbnail((side, side), Image.Resampling.BOX)
    return np.array(image)
