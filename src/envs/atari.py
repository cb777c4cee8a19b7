"""Atari games in ale-py's native vector environment, with the Atari-100k settings."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import ale_py
import gymnasium
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from ..utils.timestep import ActionSpec, ArraySpec, EnvSpec, TimeStep
from .backend import Failures
from .config import EnvConfig


class AtariBackend:
    """N emulators of one game in a native thread pool, with an `image` observation and discrete actions."""

    def __init__(self, config: EnvConfig) -> None:
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        # ale-py lacks the DISABLED mode, so NEXT_STEP is used. ale-py's `noop_max` is an exclusive bound.
        self._vector: AtariVectorEnv | None = AtariVectorEnv(
            config.game,
            config.num_envs,
            max_num_frames_per_episode=config.max_episode_frames,
            repeat_action_probability=config.sticky_actions,
            full_action_space=config.full_action_space,
            autoreset_mode=AutoresetMode.NEXT_STEP,
            img_height=config.image_size,
            img_width=config.image_size,
            grayscale=False,
            stack_num=1,
            frameskip=config.action_repeat,
            maxpool=True,
            noop_max=config.noop_max + 1,
            episodic_life=False,
            reward_clipping=False,
            use_fire_reset=False,
        )
        actions = self._vector.single_action_space
        assert isinstance(actions, spaces.Discrete)
        image = ArraySpec((config.image_size, config.image_size, 3), np.dtype(np.uint8))
        self.spec = EnvSpec(
            name=config.label,
            observation={"image": image},
            action=ActionSpec(size=int(actions.n), is_discrete=True),
            num_envs=config.num_envs,
            action_repeat=config.action_repeat,
            longest_episode=math.ceil(config.max_episode_frames / config.action_repeat),
        )

    def step_or_reset(
        self, action: NDArray[np.float32], seeds: Mapping[int, int], idle: Collection[int] = ()
    ) -> tuple[TimeStep, Failures]:
        """See `EnvBackend.step_or_reset`. Idle emulators also act, because the pool steps all emulators."""
        size = self.spec.num_envs
        is_first = np.zeros(size, np.bool_)
        is_first[list(seeds)] = True
        if len(seeds) + len(idle) == size:
            pixels, _ = self._running.reset(seed=np.array([seeds.get(index, 0) for index in range(size)]))
            reward = np.zeros(size)
            terminated = truncated = np.zeros(size, np.bool_)
        else:
            # A finished emulator resets itself with an unknown seed. The masked reset below replaces this
            # episode.
            pixels, reward, terminated, truncated, _ = self._running.step(action.argmax(axis=1))
            if seeds:
                rising = np.array([seeds[index] for index in sorted(seeds)])
                pixels, _ = self._running.reset(seed=rising, options={"reset_mask": is_first})
        step = TimeStep(
            # The library reuses the memory of its pixels, (N, 1, H, W, 3), so they must be copied.
            observation={"image": np.array(pixels[:, 0])},
            reward=np.where(is_first, 0, reward).astype(np.float32),
            is_first=is_first,
            is_last=(terminated | truncated) & ~is_first,
            is_terminal=terminated & ~is_first,
        )
        return step, {}

    def replace(self, index: int) -> None:
        """Never called, because the pool only fails as a whole and raises an exception."""
        raise NotImplementedError

    def render(self) -> None:
        """Return `None`, because the observations are already images."""

    def close(self) -> None:
        """Release the emulators and threads."""
        self._vector = None

    @property
    def _running(self) -> AtariVectorEnv:
        if self._vector is None:
            raise RuntimeError(f"{self.spec.name} is closed.")
        return self._vector


class AtariEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """A single emulator as a Gymnasium environment, with uint8 frames (size, size, 3) and action repeat."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012, Gymnasium's own form

    def __init__(self, config: EnvConfig, render_mode: str | None = None) -> None:
        self._config = config
        self._backend = AtariBackend(replace(config, num_envs=1))
        self.render_mode = render_mode
        [image] = self._backend.spec.observation.values()
        self.observation_space = spaces.Box(0, 255, image.shape, np.uint8)
        self.action_space = spaces.Discrete(self._backend.spec.action.size)
        self._frame = np.zeros(image.shape, np.uint8)

    def get_action_meanings(self) -> list[str]:
        """Return the names of the actions, e.g. NOOP and RIGHTFIRE, as Gymnasium's Atari environments do."""
        return [action.name for action in start_emulator(self._config)[1]]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode. Seeds below 2**31 are passed to the emulator. Larger seeds are hashed."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31)) if seed is None or seed >= 2**31 else seed
        return self._advance(np.zeros(self._backend.spec.action.size), {0: drawn})[0], {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Repeat an action for `action_repeat` frames or until the episode ends."""
        frame, step = self._advance(np.eye(self._backend.spec.action.size)[action], {})
        terminated, ended = bool(step.is_terminal[0]), bool(step.is_last[0])
        return frame, float(step.reward[0]), terminated, ended and not terminated, {}

    def render(self) -> NDArray[np.uint8] | None:
        """Return the newest frame if `render_mode` is rgb_array."""
        return self._frame.copy() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Release the emulator."""
        self._backend.close()

    def _advance(self, action: NDArray, seeds: Mapping[int, int]) -> tuple[NDArray[np.uint8], TimeStep]:
        step, _ = self._backend.step_or_reset(action[None].astype(np.float32), seeds)
        self._frame = step.observation["image"][0]
        return self._frame, step


def start_emulator(config: EnvConfig) -> tuple[ale_py.ALEInterface, list[ale_py.Action]]:
    """Return a standalone emulator and its actions. The emulator exposes more than the vector environment."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    emulator.setFloat("repeat_action_probability", config.sticky_actions)
    emulator.loadROM(str(roms.get_rom_path(config.game)))
    emulator.reset_game()
    is_full = config.full_action_space
    return emulator, emulator.getLegalActionSet() if is_full else emulator.getMinimalActionSet()
