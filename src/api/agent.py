"""A trained agent that plays one environment."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces
from numpy.typing import NDArray

from ..config.schema import Device, TrainConfig, WhichCheckpoint
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
    """A trained agent that plays one environment, returned by `reverie.load`.

    Between observations an agent keeps only its recurrent state, without an autograd graph or history.
    """

    def __init__(self, config: TrainConfig, workflow: Workflow, step: int | None, seed: int = 0) -> None:
        self.step = step
        """Number of agent steps for which the agent was trained, or `None` if unknown."""

        self._config, self._spec = config, replace(workflow.env, num_envs=1)
        self._policy = workflow.eval_policy(1, named_seed(seed, "evaluate"), sample=True)
        env = self.make_env()
        self.observation_space: spaces.Space[Any] = env.observation_space
        """The environment's unmodified observation space. `act` accepts its elements."""

        self.action_space: spaces.Space[Any] = env.action_space
        """The environment's unmodified action space. `act` returns its elements."""

        env.close()
        self.reset()

    def __repr__(self) -> str:
        trained = "" if self.step is None else f", trained for {count_text(self.step, 'step')}"
        return f"<reverie.Agent for {self._spec.name}{trained}>"

    def reset(self) -> None:
        """Start an episode: clear the recurrent state and treat the next observation as the first."""
        self._is_first = True

    @property
    def world_model(self) -> WorldModel:
        """The agent's own world model, not a copy. Training it changes the agent.

        Raises:
            UserError: If the agent is from a population, which has no world model.
        """
        return self._dreamer.workflow.world_model

    @property
    def state(self) -> LatentState:
        """The world model's detached state after the last observation, (1, ...).

        Raises:
            UserError: See `world_model`.
        """
        return self._dreamer.state

    @property
    def _dreamer(self) -> DreamerEvalPolicy:
        if not isinstance(self._policy, DreamerEvalPolicy):
            raise UserError(f"The agent for {self._spec.name} is from a population and has no world model.")
        return self._policy

    def act(self, observation: Observation, *, deterministic: bool = False) -> Action:
        """Return the action for one observation of one environment.

        Args:
            observation: Observation returned by the environment's `reset` or `step`: an element of
                `observation_space` without a batch axis.
            deterministic: Return the most likely action instead of sampling one as in training. The model's
                state is sampled either way. Populations are always deterministic.

        Returns:
            An element of `action_space`: an int for Discrete, otherwise an array of its shape and dtype.

        Raises:
            UserError: If keys, shapes or dtypes of the observation are wrong, or pixels are out of bounds.
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
        """Return a new environment like the one used in training, with Gymnasium's interface.

        It has the same action repeat and time limit as in training. Atari observations are (64, 64, 3) uint8.

        Args:
            render_mode: Gymnasium's render mode, such as "human"; Atari supports only "rgb_array".
        """
        return make_single(self._config.env, render_mode)


def load(
    source: str | Path,
    *,
    env: EnvLike | None = None,
    device: str = "auto",
    seed: int = 0,
    checkpoint: str = "newest",
    trust: bool = False,
) -> Agent:
    """Load a trained agent.

    Args:
        source: A run folder (by default, its newest intact checkpoint is loaded), a folder with weights and
            configuration, `pretrained:pong`, `pretrained:catch`, `pretrained:cartpole`, or a repository on
            the Hugging Face Hub, `hub:<owner>/<name>`.
        env: The environment's class or function, if only the training program can import it.
        device: Device of the networks: `auto`, `cpu` or `cuda`.
        seed: Seed of the agent's random numbers.
        checkpoint: `newest`, or `best` for the checkpoint with the best evaluation, or with the best fitness
            of a population.
        trust: Allow a copied or downloaded run to import the modules of its own classes
            (docs/components.md).

    Raises:
        UserError: If the checkpoint is missing, an argument is invalid, or the environment is
            incompatible.

    >>> agent = load("pretrained:catch", device="cpu")
    >>> env = agent.make_env()
    >>> observation, info = env.reset(seed=0)
    >>> agent.act(observation) in (0, 1, 2)
    True
    """
    require_posix()
    for name, value, kind in (("device", device, Device), ("checkpoint", checkpoint, WhichCheckpoint)):
        if value not in (known := kind.__members__):
            hint = did_you_mean(str(value), known)
            raise UserError(f"{name}={value} is not one of {', '.join(known)}.{hint}")
    require_seed(seed)
    chosen = None if env is None else suite_and_id(env)
    try:
        which = WhichCheckpoint[checkpoint]
        found = load_agent(str(source), Device[device], chosen, key="", which=which, trust=trust)
        return Agent(*found, seed)
    except UserError as error:
        # Omit the cause, because the message is complete without it.
        raise error from None
