"""Atari through ale-py's native vector environment, with the settings of Atari-100k."""

from collections.abc import Mapping

import ale_py
import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from ..utils.records import ActionSpec, ArraySpec, Arrival, EnvSpec
from .config import EnvConfig
from .vector import EpisodeBook


class AtariVectorEnvironment:
    """N emulators of one game on the threads of one native pool; observation `image`, discrete actions."""

    def __init__(self, config: EnvConfig, run_seed: int) -> None:
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._vector: AtariVectorEnv | None = AtariVectorEnv(
            config.game,
            config.num_envs,
            max_num_frames_per_episode=config.max_episode_frames,
            repeat_action_probability=config.sticky_actions,
            full_action_space=config.full_action_space,
            autoreset_mode=AutoresetMode.NEXT_STEP,  # the library has no DISABLED
            img_height=config.image_size,
            img_width=config.image_size,
            grayscale=False,
            stack_num=1,
            frameskip=config.action_repeat,
            maxpool=True,
            noop_max=config.noop_max + 1,  # ale-py draws below it
            episodic_life=False,
            reward_clipping=False,
            use_fire_reset=False,
        )
        actions = self._vector.single_action_space
        assert isinstance(actions, spaces.Discrete)
        image = ArraySpec((config.image_size, config.image_size, 3), np.dtype(np.uint8))
        self.spec = EnvSpec(
            name=f"atari/{config.game}",
            observation={"image": image},
            action=ActionSpec(size=int(actions.n), is_discrete=True),
            num_envs=config.num_envs,
            action_repeat=config.action_repeat,
        )
        self._episodes = EpisodeBook(run_seed, config.num_envs)

    def reset(self) -> Arrival:
        """Start the next episode in every environment."""
        starts = self._episodes.all
        nothing = np.zeros(self.spec.num_envs, np.bool_)
        return self._episodes.arrival(self._start(starts), np.zeros(len(starts)), nothing, nothing, starts)

    def step(self, action: NDArray[np.float32]) -> Arrival:
        """Act in every environment; see `VectorEnvironment.step`."""
        starts = self._episodes.due
        # A finished environment resets itself in this call, with a seed of its own; the masked reset then
        # replaces that episode by the one of the explicit seed and leaves the other emulators as they are.
        pixels, reward, terminated, truncated, _ = self._running.step(action.argmax(axis=1))
        if starts.any():
            observation = self._start(starts)
        else:
            observation = {"image": _owned(pixels)}
        return self._episodes.arrival(observation, reward, terminated.copy(), truncated.copy(), starts)

    def render(self) -> None:
        """Return nothing: the image observations are the picture."""

    def state_dict(self) -> dict[str, list[int]]:
        """Return the episode counters."""
        return self._episodes.state_dict()

    def load_state_dict(self, state: Mapping[str, list[int]]) -> None:
        """Take up the episode counters."""
        self._episodes.load_state_dict(state)

    def close(self) -> None:
        """Release emulators and threads."""
        self._vector = None

    @property
    def _running(self) -> AtariVectorEnv:
        if self._vector is None:
            raise RuntimeError(f"{self.spec.name} is closed.")
        return self._vector

    def _start(self, starts: NDArray[np.bool_]) -> dict[str, NDArray]:
        """Start episodes where asked; the rows of the others are their present observation."""
        seeds = np.array(self._episodes.start(starts), np.int64)
        pixels, _ = self._running.reset(seed=seeds, options={"reset_mask": starts})
        return {"image": _owned(pixels)}


def _owned(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(N, 1, H, W, 3) of the library's memory -> (N, H, W, 3) of our own."""
    return np.array(pixels[:, 0])
