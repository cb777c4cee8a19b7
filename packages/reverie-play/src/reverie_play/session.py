"""A game and the model's dream of it, step by step. This module does not depend on the web page."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reverie.envs import EnvConfig, VectorEnvironment, make_environment
from reverie.envs.spaces import as_array
from reverie.models import LatentState, Noise, categorical_kl, unimix_log_probs
from reverie.utils.errors import UserError
from reverie.utils.seeding import named_seed, torch_generator
from reverie.utils.timestep import ActionSpec, TimeStep
from reverie.workflows import Agent
from reverie.workflows.world_models import DreamerWorkflow

if TYPE_CHECKING:
    from reverie.envs import NativeVector

KEPT_FRAMES = 150
SKIPPED_STEPS = 100
LONGEST_DREAM = 10_000
_STREAMS = ("real", "dream", "agent")

Pair = tuple[float, float]
"""A number for the game and the corresponding number for the dream."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The pictures and numbers to show after a step."""

    pictures: NDArray[np.uint8]
    """(H, 3 W, 3): the game, the dream and the absolute difference."""

    action: int | None
    """The last action, or None at the start of an episode or dream, or for an action without a key."""

    step: int
    """Number of steps in the episode."""

    age: int
    """Number of steps since the dream started. At 0 the dream is a reconstruction of the game's frame."""

    is_last: bool
    """Whether the game's episode ends here. The next step starts another episode."""

    reward: Pair
    """The game's reward, and the reward head's prediction in the dream."""

    score: Pair
    """Sums of both rewards since the dream started."""

    value: Pair
    """The critic's estimate of discounted future rewards."""

    continuation: Pair
    """The model's predicted probability that the episode continues, for the game and for the dream."""

    surprise: float
    """KL divergence in nats between the model's posterior and its prior for the game's frame."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """The game after a step, and the model's state."""

    arrival: TimeStep
    state: LatentState
    """Posterior, (1, ...)."""

    surprise: float
    step: int
    """Number of steps in the episode."""


class DreamSession:
    """A game, and the world model's dream of it under the same actions.

    The model observes every frame of the game, but the dream sees only the frame from which it started. The
    dream restarts after `horizon` steps. Call `restart` first.

    A session keeps the last `KEPT_FRAMES` pictures, which are allocated once, and two copies of the open
    episode's actions: one in the environment and one from the start of the dream.
    """

    def __init__(self, workflow: DreamerWorkflow, env: EnvConfig, image: str, horizon: int) -> None:
        self._workflow, self._image = workflow, image
        self._env = replace(env, num_envs=1)
        self._choices = choices_of(workflow.env.action).to(workflow.device)
        self.horizon = horizon
        height, width, channels = workflow.env.observation[image].shape
        self._kept = np.zeros((KEPT_FRAMES, height, 3 * width, channels), np.uint8)
        self._environment: VectorEnvironment | NativeVector | None = None

    def restart(self, seed: int) -> Frame:
        """Start over with a new seed for games, agent actions and dreams."""
        self.close()
        device = self._workflow.device
        self._noise = {
            name: Noise(torch_generator(seed, f"play/{name}", device), device) for name in _STREAMS
        }
        self._environment = make_environment(self._env, named_seed(seed, "play"))
        self._kept_count = 0
        return self.new_game()

    def new_game(self) -> Frame:
        """Abandon the game and start another one."""
        zeros = torch.zeros(1, self._workflow.env.action.size, device=self._workflow.device)
        self._now = self._believe(self._running.reset(), zeros, self._workflow.world_model.rssm.initial(1), 0)
        return self.begin_dream()

    def begin_dream(self) -> Frame:
        """Start the dream at the game's current step. `back` returns to this step."""
        self._start: tuple[_Moment, Mapping[str, Any]] = (self._now, self._running.state_dict())
        return self._dream_of_start()

    def back(self) -> Frame:
        """Return to the start of the dream. The same actions then reproduce the same game.

        The environment replays the episode from its beginning, so this takes longer in long episodes.

        Raises:
            UserError: If the environment is not deterministic. The episode then ends.
        """
        moment, state = self._start
        arrival, diverged = self._running.restore(state)
        self._now = replace(moment, arrival=arrival)
        if diverged:
            raise UserError(diverged[0])
        return self._dream_of_start()

    def skip(self) -> Frame:
        """Let the agent play `SKIPPED_STEPS` steps without showing them, then start the dream."""
        for _ in range(SKIPPED_STEPS):
            self._advance(self._agent_action())
        return self.begin_dream()

    @torch.no_grad()
    def step(self, action: int | None) -> Frame:
        """Act in the game and in the dream. With `None`, the agent chooses the action from the game's state.

        Raises:
            EnvironmentCrashed: If the environment fails too often.
        """
        chosen = self._agent_action() if action is None else self._choices[[action]]
        self._advance(chosen)
        if self._now.arrival.is_first[0] or self._age >= self.horizon:
            return self.begin_dream()
        rssm = self._workflow.world_model.rssm
        states, _ = rssm.imagine(self._dream, lambda *_: chosen, rssm.noise(self._noise["dream"], 1, 1))
        self._dream, self._age = states[-1], self._age + 1
        is_chosen = (self._choices == chosen).all(1)
        return self._show(int(is_chosen.int().argmax()) if is_chosen.any() else None)

    def frames(self) -> NDArray[np.uint8]:
        """Return a copy of the last pictures, oldest first: (T, H, 3 W, 3), T at most `KEPT_FRAMES`."""
        first = max(0, self._kept_count - KEPT_FRAMES)
        return self._kept[np.arange(first, self._kept_count) % KEPT_FRAMES]

    def close(self) -> None:
        """Release the environment. Repeated calls have no effect."""
        if self._environment is not None:
            self._environment.close()

    @property
    def _running(self) -> "VectorEnvironment | NativeVector":
        assert self._environment is not None, "call restart first"
        return self._environment

    @torch.no_grad()
    def _agent_action(self) -> Tensor:
        actor, state = self._workflow.controller.actor, self._now.state
        noise = actor.noise(self._noise["agent"], 1, self._workflow.env.action.size)
        return actor(state.feature).sample(noise)

    def _advance(self, action: Tensor) -> None:
        """Execute an action (1, A) in the game, and let the model observe the result."""
        arrival = self._running.step(action.cpu().numpy())
        steps = 0 if arrival.is_first[0] else self._now.step + 1
        self._now = self._believe(arrival, action, self._now.state, steps)

    @torch.no_grad()
    def _believe(self, arrival: TimeStep, action: Tensor, before: LatentState, steps: int) -> _Moment:
        """Return the model's state and surprise after the model observes an arrival."""
        world_model, device = self._workflow.world_model, self._workflow.device
        rssm = world_model.rssm
        seen = {k: torch.as_tensor(v).to(device).unsqueeze(1) for k, v in arrival.observation.items()}
        observed = rssm.observe(
            world_model.encoder(seen),
            action.unsqueeze(1),
            torch.from_numpy(arrival.is_first).to(device).unsqueeze(1),
            rssm.noise(self._noise["real"], 1, 1),
            state=before,
        )
        logits = (observed.posterior_logits, observed.prior_logits)
        posterior, prior = (unimix_log_probs(each, rssm.config.latent_unimix) for each in logits)
        surprise = float(categorical_kl(posterior, prior))
        return _Moment(arrival, observed.posterior.select((slice(None), 0)), surprise, steps)

    def _dream_of_start(self) -> Frame:
        self._dream, self._age, self._score = self._now.state, 0, (0.0, 0.0)
        return self._show(None)

    @torch.no_grad()
    def _show(self, action: int | None) -> Frame:
        """Return the current frame and store its pictures."""
        world_model, critic = self._workflow.world_model, self._workflow.controller.critic
        now, arrival = self._now, self._now.arrival
        feature = torch.cat([now.state.feature, self._dream.feature])
        predicted, continuation = world_model.predict(feature)
        reward = (float(arrival.reward[0]), float(predicted[1]))
        if self._age:
            self._score = (self._score[0] + reward[0], self._score[1] + reward[1])
        pictures = self._pictures()
        self._kept[self._kept_count % KEPT_FRAMES] = pictures
        self._kept_count += 1
        # The continuation head's target includes the discount, so divide by it here.
        return Frame(
            pictures=pictures,
            action=action,
            step=now.step,
            age=self._age,
            is_last=bool(arrival.is_last[0]),
            reward=reward,
            score=self._score,
            value=_pair(critic.mean(critic(feature))),
            continuation=_pair((continuation / world_model.discount).clamp(max=1)),
            surprise=now.surprise,
        )

    def _pictures(self) -> NDArray[np.uint8]:
        decoder = self._workflow.world_model.decoder
        assert decoder is not None
        [[dream]] = decoder.to_raw(decoder(LatentState.stack([self._dream], 1)))[self._image].cpu().numpy()
        real = as_array(self._now.arrival.observation[self._image][0])
        difference = np.abs(real.astype(np.int16) - dream).astype(np.uint8)
        return np.concatenate([real, dream, difference], axis=1)


def choices_of(action: ActionSpec) -> Tensor:
    """Return the actions that keys can select, (choices, A).

    Continuous actions are zeros, and each number at 1 and at -1.

    >>> choices_of(ActionSpec(1, is_discrete=False)).tolist()
    [[0.0], [1.0], [-1.0]]
    """
    ones = torch.eye(action.size)
    if action.is_discrete:
        return ones
    return torch.cat([torch.zeros(1, action.size), torch.stack([ones, -ones], 1).flatten(0, 1)])


def _pair(numbers: Tensor) -> Pair:
    real, dream = numbers.tolist()
    return real, dream


def dreamer_with_pictures(agent: Agent, asked: str) -> tuple[DreamerWorkflow, str]:
    """Check that an agent can be played. Return it as a workflow, with the key of its image observation.

    `asked` is the user's input that selected the agent.

    Raises:
        UserError: If the agent lacks a world model, image or decoder, or its actions have several parts.
    """
    if not isinstance(agent, DreamerWorkflow):
        raise UserError(f"{asked} is a population, which has no world model and cannot dream.")
    images = [key for key, spec in agent.env.observation.items() if spec.is_image]
    if not images:
        raise UserError(f"{asked}: {agent.env.name} has no image observation to show.")
    if agent.env.action.parts:
        raise UserError(f"{asked}: {agent.env.name} has no single discrete action that keys could select.")
    if agent.world_model.decoder is None:
        raise UserError(
            f"{asked} was trained with world_model.decoder=off, so its dreams cannot be shown. "
            "Train with world_model.decoder=detached."
        )
    return agent, images[0]
