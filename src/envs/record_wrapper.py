"""One Gymnasium environment that speaks records; it runs where the environment runs, be it a worker."""

import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as RegisteredSpec
from numpy.typing import NDArray

from .spaces import action_spec, convert_action, convert_observation, observation_space

CRASH = "crash"
"""Key of the info that carries the traceback of a failed environment."""

_Record = tuple[dict[str, NDArray], float, bool, bool, dict[str, Any]]


class RecordWrapper(gymnasium.Wrapper):
    """Converts observations and actions, repeats actions, and seeds the episodes that autoreset starts.

    An exception of the environment travels as info: Gymnasium's own route passes it through `warnings.warn`
    as a format string, which fails on a percent sign, and drops the traceback.
    """

    def __init__(self, env: gymnasium.Env, action_repeat: int, image_size: int) -> None:
        super().__init__(env)
        self._space = observation_space(env.observation_space, image_size)
        self.observation_space = self._space
        self.action_space = spaces.Box(-np.inf, np.inf, (action_spec(env.action_space).size,), np.float32)
        self.next_seed: int | None = None
        self._action_repeat = action_repeat
        self._image_size = image_size

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray], dict[str, Any]]:
        """Start an episode with `seed`, or with `next_seed` when Gymnasium resets by itself."""
        observation, _, _, _, info = self._guarded(lambda: self._reset(seed, options))
        return observation, info

    def step(self, action: NDArray[np.float32]) -> _Record:
        """Repeat one action (A,) until its repetitions or the episode end; rewards are summed."""
        return self._guarded(lambda: self._step(action))

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> _Record:
        observation, _ = self.env.reset(seed=self.next_seed if seed is None else seed, options=options)
        return self._converted(observation), 0.0, False, False, {}

    def _step(self, action: NDArray[np.float32]) -> _Record:
        choice = convert_action(self.env.action_space, action)
        observation, total, terminated, truncated = None, 0.0, False, False
        for _ in range(self._action_repeat):
            observation, reward, terminated, truncated, _ = self.env.step(choice)
            total += float(reward)
            if terminated or truncated:
                break
        return self._converted(observation), total, bool(terminated), bool(truncated), {}

    def _converted(self, observation: Any) -> dict[str, NDArray]:
        return convert_observation(self.env.observation_space, observation, self._image_size)

    def _guarded(self, call: Callable[[], _Record]) -> _Record:
        try:
            return call()
        except Exception:
            nothing = {key: np.zeros(part.shape or (), part.dtype) for key, part in self._space.items()}
            return nothing, 0.0, False, False, {CRASH: traceback.format_exc()}


@dataclass(frozen=True, slots=True)
class EnvMaker:
    """Makes one environment, in this process or in a worker; picklable."""

    registered: RegisteredSpec
    """The registration itself, not its id: a worker knows no id that was registered at run time."""

    action_repeat: int
    image_size: int
    time_limit: int | None
    render_mode: str | None
    main_pid: int

    def __call__(self) -> RecordWrapper:
        """Make it."""
        if os.getpid() != self.main_pid:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process
        # an environment that draws nothing need not know the argument
        options: dict[str, Any] = {"render_mode": self.render_mode} if self.render_mode else {}
        env = gymnasium.make(self.registered, max_episode_steps=self.time_limit, **options)
        return RecordWrapper(env, self.action_repeat, self.image_size)
