"""Whole episodes of many members at once, each from an explicit seed."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ....buffers import EpisodeRecords
from ....envs import EnvConfig, EnvironmentCrashed, Restarts, make_simulators
from ....utils.errors import UserError
from ....utils.seeding import named_seed, numpy_generator
from ....utils.timestep import EnvSpec
from ....workflows.population import Members, PopulationConfig, flat_observation

EPISODE_SEEDS = 2**31
"""Seeds of episodes are below it: the widest that every emulator takes."""


@dataclass(frozen=True, slots=True)
class Played:
    """The episodes of some members in one generation."""

    episodes: list[EpisodeRecords]
    """Those of one member after the other; first those that make its fitness."""

    fitness: list[float]
    """Mean return of each member's episodes without noise, raw units, undiscounted."""

    lengths: list[int]
    """Agent steps of each episode."""

    @property
    def steps(self) -> int:
        """Agent steps of all episodes together."""
        return sum(self.lengths)


@dataclass(frozen=True, slots=True)
class _Slot:
    """One environment: it plays one episode in each generation."""

    row: int
    """Of the member, among those played here."""

    episode: int
    """Which of the member's episodes; those from `population.episodes` on have action noise."""


class Rollouts:
    """Plays the members `first` to `first + count` of a population.

    What a member plays depends on nothing but the seed, the generation and its own number, so groups of
    members may be played anywhere.

    Args:
        env: Which environment; its `num_envs` is not looked at.
        population: Which episodes a member plays.
        exploration_noise: Standard deviation of the noise of exploring episodes.
        seed: Run seed.
        first: Number of the first member.
        count: Members.

    Raises:
        UserError: If nothing bounds the length of an episode.
    """

    def __init__(
        self,
        env: EnvConfig,
        population: PopulationConfig,
        exploration_noise: float,
        seed: int,
        first: int,
        count: int,
    ) -> None:
        self._population, self._noise, self._seed, self._first = population, exploration_noise, seed, first
        self._slots = [
            _Slot(row, episode)
            for row in range(count)
            for episode in range(episodes_of(population, first + row))
        ]
        self._simulators = make_simulators(env, len(self._slots))
        self._restarts = Restarts(self._simulators, env.max_restarts, "is played again")
        self.spec: EnvSpec = self._simulators.spec
        steps = longest_episode(self.spec)
        shape = (len(self._slots), steps + 1)
        self._observation = {
            key: np.zeros((*shape, *each.shape), each.dtype) for key, each in self.spec.observation.items()
        }
        self._action = np.zeros((*shape, self.spec.action.size), np.float32)
        self._reward = np.zeros(shape, np.float32)
        self._rows = np.array([slot.row for slot in self._slots])
        self._places = np.array([slot.episode for slot in self._slots])
        self._shape = (count, max(episodes_of(population, member) for member in range(population.size)))

    @property
    def nbytes(self) -> int:
        """Bytes of the episodes of one generation, allocated once."""
        return sum(each.nbytes for each in (*self._observation.values(), self._action, self._reward))

    def play(self, members: Members, generation: int, abandon: Callable[[], bool]) -> Played | None:
        """Play every member's episodes; None once `abandon`, which is asked before every step, returns True.

        Raises:
            EnvironmentCrashed: If environments failed more than `env.max_restarts` times.
        """
        count = len(self._slots)
        noise = self._exploration(generation)
        begin = {slot: self._episode_seed(slot, generation) for slot in range(count)}
        time, terminal = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        is_over, action = np.zeros(count, np.bool_), np.zeros((count, self.spec.action.size), np.float32)
        while not is_over.all():
            if abandon():
                return None
            outcome = self._restarts.advance(action, begin, np.flatnonzero(is_over).tolist())
            if self._restarts.crash is not None:
                self.close()
                raise EnvironmentCrashed(self._restarts.crash)
            started = np.zeros(count, np.bool_)
            started[list(begin)] = True
            alive = ~is_over
            alive[list(outcome.failures)] = False
            time = np.where(started, 0, time + alive)
            slots = np.flatnonzero(alive)
            for key, values in outcome.observation.items():
                self._observation[key][slots, time[slots]] = values[slots]
            self._reward[slots, time[slots]] = np.where(started, 0, outcome.reward)[slots]
            terminal[slots] = outcome.is_terminated[slots] & ~started[slots]
            is_over[slots] = outcome.is_over[slots] & ~started[slots]
            # One that failed plays its episode again from the same seed, in the environment in its place.
            begin = {slot: self._episode_seed(slot, generation) for slot in outcome.failures}
            action = self._act(members, outcome.observation, noise, time)
            self._action[slots, time[slots]] = action[slots]
        return self._played(time, terminal)

    def close(self) -> None:
        """Release environments and their processes; may be called twice."""
        self._simulators.close()

    def _act(
        self, members: Members, observation: dict[str, NDArray], noise: NDArray[np.float32], time: NDArray
    ) -> NDArray[np.float32]:
        """Return actions (slots, A) in [-1, 1]."""
        flat = flat_observation({key: torch.from_numpy(value) for key, value in observation.items()})
        seen = flat.new_zeros(*self._shape, flat.shape[-1])
        seen[self._rows, self._places] = flat
        with torch.no_grad():
            chosen = members.act(members.networks["actor"], seen.to(members.device)).cpu().numpy()
        at = np.minimum(time, noise.shape[1] - 1)
        return (chosen[self._rows, self._places] + noise[np.arange(len(at)), at]).clip(-1, 1)

    def _exploration(self, generation: int) -> NDArray[np.float32]:
        """Return the noise of every step of every slot; zeros where there is none."""
        noise = np.zeros_like(self._action)
        for index, slot in enumerate(self._slots):
            if slot.episode >= self._population.episodes:
                name = f"noise of episode {slot.episode} of member {self._first + slot.row} in {generation}"
                drawn = numpy_generator(self._seed, name).standard_normal(noise[index].shape, np.float32)
                noise[index] = self._noise * drawn
        return noise

    def _episode_seed(self, index: int, generation: int) -> int:
        """Return the seed of a slot's episode.

        All members meet the same episodes, so that luck does not decide between them; those with noise, which
        decide nothing, differ.
        """
        slot = self._slots[index]
        explores = slot.episode >= self._population.episodes
        member = self._first + slot.row if explores else -1
        return named_seed(self._seed, "generation", generation, slot.episode, member + 1) % EPISODE_SEEDS

    def _played(self, time: NDArray[np.int64], terminal: NDArray[np.bool_]) -> Played:
        """Return the episodes as arrays of their own."""
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
        is_test = self._places < self._population.episodes
        fitness = [
            float(returns[is_test & (self._rows == row)].mean()) for row in range(int(self._rows.max()) + 1)
        ]
        return Played(episodes, fitness, time.tolist())


def episodes_of(population: PopulationConfig, member: int) -> int:
    """Return how many episodes a member plays in a generation."""
    explores = member < population.num_explorers
    return population.episodes + (population.exploration_episodes if explores else 0)


def num_slots(population: PopulationConfig) -> int:
    """Return how many episodes all members play in a generation, which is how many environments there are."""
    return sum(episodes_of(population, member) for member in range(population.size))


def longest_episode(spec: EnvSpec) -> int:
    """Return the most steps of an episode.

    Raises:
        UserError: If nothing bounds them.
    """
    if spec.longest_episode is None:
        raise UserError(
            f"{spec.name} has no time limit, and a generation ends when every episode has ended. "
            "Set env.time_limit=1000."
        )
    return spec.longest_episode
