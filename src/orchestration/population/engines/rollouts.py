"""Run complete episodes of many members in parallel, each with an explicit seed, and train the members.

Ray workers import this module, but it does not import Ray.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ....buffers import EpisodeRecords, EpisodeReplayBuffer, TransitionTable
from ....envs import EnvConfig, Restarts, make_backend
from ....utils.errors import UserError
from ....utils.seeding import named_seed, numpy_generator
from ....utils.timestep import EnvSpec
from ....workflows.population.config import PopulationConfig, TD3Config
from ....workflows.population.erl import ERLWorkflow
from ....workflows.population.members import Members, Sizes, Stacked
from ....workflows.population.td3 import TD3, TrainPhase, flat_observation

# Every emulator accepts seeds below this number.
EPISODE_SEEDS = 2**31
Losses = dict[str, list[float]]
"""Losses of each member by name, averaged over the training phase."""

Arrays = dict[str, Any]
"""The arrays of some members, nested like `Members.state_dict`. Ray sends them without copying."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings shared by all engines. `env.num_envs` is ignored."""

    env: EnvConfig
    population: PopulationConfig
    td3: TD3Config
    seed: int


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """The episodes of some members in one generation."""

    episodes: list[EpisodeRecords]
    """Episodes in the order of members. Each member's episodes without noise come first.
    They determine its fitness."""

    fitness: list[float]
    """Mean undiscounted return of each member's episodes without noise, in raw units."""

    lengths: list[int]
    """Agent steps of each episode."""


class Rollouts:
    """Runs `count` members of a population, starting with member `first`, one environment per episode.

    A member's episodes depend only on the seed, the generation and the member's index.

    Raises:
        UserError: If the length of episodes is not limited.
    """

    def __init__(self, settings: EngineSettings, first: int, count: int) -> None:
        population = settings.population
        self._noise, self._seed, self._first = settings.td3.exploration_noise, settings.seed, first
        num_explorers = min(max(0, population.num_explorers - first), count)
        episodes = np.full(count, population.episodes)
        episodes[:num_explorers] += population.exploration_episodes
        # For each environment: the member's row in this group, and the index of the episode.
        self._rows = np.repeat(np.arange(count), episodes)
        self._episodes = np.concatenate([np.arange(number) for number in episodes])
        self._is_exploring = self._episodes >= population.episodes
        self._backend = make_backend(replace(settings.env, num_envs=len(self._rows)))
        self._restarts = Restarts(self._backend, settings.env.max_restarts, "is repeated")
        self.spec: EnvSpec = self._backend.spec
        shape = (len(self._rows), longest_episode(self.spec) + 1)
        self._observation = {
            key: np.zeros((*shape, *each.shape), each.dtype) for key, each in self.spec.observation.items()
        }
        self._action = np.zeros((*shape, self.spec.action.size), np.float32)
        self._reward = np.zeros(shape, np.float32)
        # All groups use the whole population's width, because kernels for other widths could round
        # differently.
        explores = population.exploration_episodes if population.num_explorers else 0
        self._shape = (count, population.episodes + explores)

    @property
    def nbytes(self) -> int:
        """Bytes of a generation's episodes, allocated once."""
        return sum(each.nbytes for each in (*self._observation.values(), self._action, self._reward))

    def play(
        self, members: Members, generation: int, should_stop: Callable[[], bool]
    ) -> RolloutResult | None:
        """Run every member's episodes. Return `None` if `should_stop` returns True before a step.

        Raises:
            EnvironmentCrashed: If environments failed more than `env.max_restarts` times.
        """
        count = len(self._rows)
        noise = self._exploration(generation)
        seeds = {slot: self._episode_seed(slot, generation) for slot in range(count)}
        time, terminal = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        done, action = np.zeros(count, np.bool_), np.zeros((count, self.spec.action.size), np.float32)
        while not done.all():
            if should_stop():
                return None
            step, failures = self._restarts.step_or_reset(action, seeds, np.flatnonzero(done).tolist())
            self._restarts.raise_if_crashed()
            alive = ~done
            alive[list(failures)] = False
            time = np.where(step.is_first, 0, time + alive)
            slots = np.flatnonzero(alive)
            for key, values in step.observation.items():
                self._observation[key][slots, time[slots]] = values[slots]
            self._reward[slots, time[slots]] = step.reward[slots]
            terminal[slots], done[slots] = step.is_terminal[slots], step.is_last[slots]
            # Failed environments repeat their episode with the same seed.
            seeds = {slot: self._episode_seed(slot, generation) for slot in failures}
            action = self._act(members, step.observation, noise, time)
            self._action[slots, time[slots]] = action[slots]
        return self._result(time, terminal)

    def close(self) -> None:
        """Release environments and their processes. Repeated calls have no effect."""
        self._backend.close()

    def _act(
        self, members: Members, observation: dict[str, NDArray], noise: NDArray[np.float32], time: NDArray
    ) -> NDArray[np.float32]:
        """Return actions (environments, A) in [-1, 1]."""
        flat = flat_observation(observation)
        seen = flat.new_zeros(*self._shape, flat.shape[-1])
        seen[self._rows, self._episodes] = flat
        with torch.no_grad():
            chosen = members.act(members.networks["actor"], seen.to(members.device)).cpu().numpy()
        at = np.minimum(time, noise.shape[1] - 1)
        return (chosen[self._rows, self._episodes] + noise[np.arange(len(at)), at]).clip(-1, 1)

    def _exploration(self, generation: int) -> NDArray[np.float32]:
        """Return the noise for every step of every environment, with zeros for episodes without noise."""
        noise = np.zeros_like(self._action)
        for slot in np.flatnonzero(self._is_exploring):
            member = self._first + self._rows[slot]
            name = f"noise of episode {self._episodes[slot]} of member {member} in {generation}"
            drawn = numpy_generator(self._seed, name).standard_normal(noise[slot].shape, np.float32)
            noise[slot] = self._noise * drawn
        return noise

    def _episode_seed(self, slot: int, generation: int) -> int:
        """Return an episode's seed. Members share noise-free episodes' seeds, so fitness is comparable."""
        member = self._first + int(self._rows[slot]) if self._is_exploring[slot] else -1
        episode = int(self._episodes[slot])
        return named_seed(self._seed, "generation", generation, episode, member + 1) % EPISODE_SEEDS

    def _result(self, time: NDArray[np.int64], terminal: NDArray[np.bool_]) -> RolloutResult:
        """Return the fitness and copies of the episodes."""
        episodes = [
            EpisodeRecords(
                observation={key: each[slot, : end + 1].copy() for key, each in self._observation.items()},
                action=self._action[slot, : end + 1].copy(),
                reward=self._reward[slot, : end + 1].copy(),
                is_terminal=bool(terminal[slot]),
            )
            for slot, end in enumerate(time.tolist())
        ]
        returns = np.array([episode.reward.sum(dtype=np.float64) for episode in episodes])
        judged = (~self._is_exploring & (self._rows == row) for row in range(self._shape[0]))
        return RolloutResult(episodes, [float(returns[each].mean()) for each in judged], time.tolist())


class LocalEngine:
    """Runs all members in parallel and trains them together in this process."""

    def __init__(self, settings: EngineSettings) -> None:
        self._rollouts = Rollouts(settings, 0, settings.population.size)
        self.spec = self._rollouts.spec
        self.planned_bytes = self._rollouts.nbytes

    def evaluate(
        self, workflow: ERLWorkflow, generation: int, should_stop: Callable[[], bool]
    ) -> RolloutResult | None:
        """See `Rollouts.play`."""
        return self._rollouts.play(workflow.members, generation, should_stop)

    def learn(self, workflow: ERLWorkflow, replay: EpisodeReplayBuffer, phase: TrainPhase) -> Losses:
        """Train all members in place."""
        losses = workflow.td3.learn(workflow.members, replay, phase)
        return {name: each.tolist() for name, each in losses.items()}

    def close(self) -> None:
        """Release environments and their processes. Repeated calls have no effect."""
        self._rollouts.close()


class GroupWorker:
    """Runs and trains `count` members, starting with member `first`.

    Workers have no state between calls, so a new worker can replace this one at any time.
    """

    def __init__(self, settings: EngineSettings, first: int, count: int) -> None:
        torch.set_num_threads(1)
        self._first, self._count = first, count
        self._rollouts = Rollouts(settings, first, count)
        sizes, device = Sizes.of(self._rollouts.spec, settings.td3), torch.device("cpu")
        is_padded = count == 1 < settings.population.size
        self._members = PaddedMember(sizes, 2, device) if is_padded else Members(sizes, count, device)
        self._td3 = TD3(settings.td3)

    def play(self, actor: Arrays, generation: int) -> RolloutResult:
        """Run every member's episodes. `actor` is the first result of `rows_to_send`."""
        _copy(actor, self._members.networks["actor"])
        result = self._rollouts.play(self._members, generation, lambda: False)
        assert result is not None
        return result

    def learn(
        self, actor: Arrays, rest: Arrays, table: TransitionTable, phase: TrainPhase
    ) -> tuple[Arrays, Losses]:
        """Train all members and return their state in the format of `Members.rows`, and the losses."""
        members = self._members
        _copy({"actor": actor, **rest["networks"]}, members.networks)
        _copy(rest["moments"], members.moments)
        members.updates = rest["updates"]
        numbers = phase.members[self._first : self._first + self._count]
        copies = members.count // self._count
        losses = self._td3.learn(members, table, replace(phase, members=numbers * copies))
        of_group = {name: each[: self._count].tolist() for name, each in losses.items()}
        return _as_arrays(members.state_dict(), 0, self._count), of_group


class PaddedMember(Members):
    """A member duplicated into two rows, because torch's kernel for a single row rounds differently."""

    def act(self, actor: Stacked, observation: Tensor) -> Tensor:
        """See `Members.act`. A single row of observations belongs to the member."""
        rows = len(observation)
        return super().act(actor, observation.repeat(self.count // rows, 1, 1))[:rows]


def rows_to_send(members: Members, start: int, stop: int) -> tuple[Arrays, Arrays]:
    """Return some members' actors and the rest of their state (for training), as views if possible."""
    state = _as_arrays(members.state_dict(), start, stop)
    return state["networks"].pop("actor"), state


def _as_arrays(state: dict[str, Any], start: int, stop: int) -> Arrays:
    return tree_map_only(Tensor, lambda tensor: tensor[start:stop].cpu().numpy(), state)


def _copy(arrays: Arrays, tensors: Mapping[str, Any]) -> None:
    """Copy nested (possibly read-only) arrays. A single row fills both rows of a padded member."""
    for array, tensor in zip(tree_leaves(arrays), tree_leaves(tensors), strict=True):
        tensor.copy_(torch.tensor(array))


def longest_episode(spec: EnvSpec) -> int:
    """Return the maximum number of steps in an episode.

    Raises:
        UserError: If episodes do not have a limit.
    """
    if spec.longest_episode is None:
        raise UserError(
            f"{spec.name} has no time limit, but a generation ends only when all episodes have ended. "
            "Set env.time_limit=1000."
        )
    return spec.longest_episode
