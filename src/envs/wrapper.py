"""Adapt one Gymnasium environment to the fields of a `TimeStep`; runs in the environment's process."""

import traceback
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as RegisteredSpec
from numpy.typing import NDArray

from .backend import EnvironmentFailed
from .spaces import convert_action, convert_observation, observation_space

Request = int | NDArray[np.float32]
"""A seed (start an episode with it) or an action (A,)."""

Record = tuple[dict[str, NDArray], float, bool, bool]
"""Observation, reward, terminated, truncated."""


class RecordWrapper:
    """Converts observations and actions, and repeats actions.

    Args:
        env: The environment.
        action_repeat: Times that each action is repeated.
        image_size: Height and width of delivered images, in pixels.
    """

    def __init__(self, env: gymnasium.Env, action_repeat: int, image_size: int) -> None:
        self.env = env
        self.observation_space = observation_space(env.observation_space, image_size)
        self._action_repeat = action_repeat
        self._image_size = image_size

    def answer(self, request: Request) -> Record:
        """Start an episode or act.

        Raises:
            EnvironmentFailed: If the environment raised, or gave an observation outside its space.
        """
        try:
            return self._start(request) if isinstance(request, int) else self._act(request)
        except EnvironmentFailed:
            raise
        except Exception as error:
            raise failure_of(error) from error

    def _start(self, seed: int) -> Record:
        observation, _ = self.env.reset(seed=seed)
        return self._converted(observation), 0.0, False, False

    def _act(self, action: NDArray[np.float32]) -> Record:
        """Repeat one action (A,), at most until the episode ends; rewards are summed."""
        choice = convert_action(self.env.action_space, action)
        observation, total, terminated, truncated = None, 0.0, False, False
        for _ in range(self._action_repeat):
            observation, reward, terminated, truncated, _ = self.env.step(choice)
            total += float(reward)
            if terminated or truncated:
                break
        return self._converted(observation), total, bool(terminated), bool(truncated)

    def _converted(self, observation: Any) -> dict[str, NDArray]:
        return convert_observation(self.env.observation_space, observation, self._image_size)


@dataclass(frozen=True, slots=True)
class EnvMaker:
    """Makes one environment, in this process or in a worker; picklable."""

    registered: RegisteredSpec
    """The registration, not its id: a subprocess does not know ids that were registered at run time."""

    action_repeat: int
    image_size: int
    time_limit: int | None
    render_mode: str | None = None

    def __call__(self) -> RecordWrapper:
        """Make it."""
        # an environment that renders nothing need not accept the argument
        options: dict[str, Any] = {"render_mode": self.render_mode} if self.render_mode else {}
        env = gymnasium.make(self.registered, max_episode_steps=self.time_limit, **options)
        return RecordWrapper(env, self.action_repeat, self.image_size)


def failure_of(error: Exception) -> EnvironmentFailed:
    """Return the exception `error`, which is being handled, as a failure of its environment."""
    return EnvironmentFailed(f"it raised {type(error).__name__}: {error}", traceback.format_exc())
