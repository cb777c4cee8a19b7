"""A trained agent that plays one environment."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces
from numpy.typing import NDArray

from ..config.schema import Device, TrainConfig
from ..envs import EnvironmentFailed, make_single
from ..envs.spaces import convert_action, convert_observation, require_observation
from ..models import LatentState
from ..orchestration.trained import load_agent
from ..utils.errors import UserError, did_you_mean, require_posix, require_seed
from ..utils.seeding import named_seed
from ..utils.timestep import TimeStep
from ..utils.units import count_text
from ..workflows import Agent as Workflow
from ..workflows.world_models import DreamerEvalPolicy
from ..workflows.world_models.world_model import WorldModel
from .environments import EnvLike, suite_and_id

Observation = NDArray[Any] | Mapping[str, Any] | int | float
Action = int | NDArray[Any]


class Agent:
    """A trained agent that plays one environment; `reverie.load` makes it.

    It keeps its recurrent state from one observation to the next, and nothing else: no graph, no history.
    """

    def __init__(self, config: TrainConfig, workflow: Workflow, step: int | None, seed: int = 0) -> None:
        self.step = step
        """Agent steps that it was trained for; None if that is not known."""

        self._config, self._spec = config, replace(workflow.env, num_envs=1)
        self._policy = workflow.eval_policy(1, named_seed(seed, "evaluate"), sample=True)
        env = self.make_env()
        self.observation_space: spaces.Space[Any] = env.observation_space
        """Of the environment, as it is: `act` takes its elements."""

        self.action_space: spaces.Space[Any] = env.action_space
        """Of the environment, as it is: `act` returns its elements."""

        env.close()
        self.reset()

    def __repr__(self) -> str:
        trained = "" if self.step is None else f", trained for {count_text(self.step, 'step')}"
        return f"<reverie.Agent for {self._spec.name}{trained}>"

    def reset(self) -> None:
        """Begin an episode: the next observation is its first, and nothing before it is remembered."""
        self._is_first = True

    @property
    def world_model(self) -> WorldModel:
        """The networks that it believes with, themselves; what is learned in them is learned in the agent.

        Raises:
            UserError: If it is of a population, which has none.
        """
        return self._dreamer.workflow.world_model

    @property
    def state(self) -> LatentState:
        """What the world model believes after the last observation, (1, ...), without graph.

        Raises:
            UserError: As `world_model`.
        """
        return self._dreamer.state

    @property
    def _dreamer(self) -> DreamerEvalPolicy:
        if not isinstance(self._policy, DreamerEvalPolicy):
            raise UserError(f"The agent for {self._spec.name} is of a population: it has no world model.")
        return self._policy

    def act(self, observation: Observation, *, deterministic: bool = False) -> Action:
        """Return the action for one observation of one environment.

        Args:
            observation: What `reset` or `step` of the environment returned: an element of
                `observation_space`, without a batch axis.
            deterministic: Take the likeliest action instead of drawing one as in training; the model's state
                is drawn all the same. A population has one action for each observation.

        Returns:
            An element of `action_space`: an int for Discrete, else an array of its shape and dtype.

        Raises:
            UserError: If the observation has another key, shape or dtype, or pixels out of their bounds.
        """
        require_observation(self.observation_space, observation, self._spec.name)
        try:
            seen = convert_observation(self.observation_space, observation, self._config.env.image_size)
        except EnvironmentFailed as error:
            raise UserError(f"{self._spec.name}: {error}.") from None
        arrived = TimeStep.empty(self._spec)
        arrived.set_observation(0, seen)
        arrived.is_first[0], self._is_first = self._is_first, False
        self._policy.sample = not deterministic
        action = convert_action(self.action_space, self._policy.act(arrived)[0])
        return int(action) if isinstance(self.action_space, spaces.Discrete) else action

    def make_env(self, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
        """Return the environment it was trained for: one, with Gymnasium's interface, and the caller's own.

        Actions are repeated and episodes limited as in training. Atari gives (64, 64, 3) uint8.

        Args:
            render_mode: Gymnasium's, such as "human"; an Atari environment knows "rgb_array".
        """
        return make_single(self._config.env, render_mode)


def load(source: str | Path, *, env: EnvLike | None = None, device: str = "auto", seed: int = 0) -> Agent:
    """Return the agent that a run has left, ready to act.

    Args:
        source: Folder of a run, whose newest whole checkpoint counts, a folder of weights and configuration,
            `pretrained:pong`, `pretrained:catch`, `pretrained:cartpole`, or a repository of the Hugging Face
            Hub, `hub:<owner>/<name>`.
        env: The environment, if it is known to this program alone: the class or function it was trained with.
        device: `auto`, `cpu` or `cuda`; where the networks live.
        seed: Of all that the agent draws.

    Raises:
        UserError: If there is no such run or checkpoint, `device` or `seed` is none, or the
            networks do not fit the environment.

    >>> agent = load("pretrained:catch", device="cpu")
    >>> env = agent.make_env()
    >>> observation, info = env.reset(seed=0)
    >>> agent.act(observation) in (0, 1, 2)
    True
    """
    require_posix()
    if device not in Device.__members__:
        known = ", ".join(Device.__members__)
        raise UserError(f"device={device} is none of {known}.{did_you_mean(str(device), Device.__members__)}")
    require_seed(seed)
    chosen = None if env is None else suite_and_id(env)
    try:
        return Agent(*load_agent(str(source), Device[device], chosen, key=""), seed)
    except UserError as error:
        raise error from None  # the message has all of it
