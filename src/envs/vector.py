"""One interface over every kind of vector environment, and the episode bookkeeping they share."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..utils.records import Arrival, EnvSpec


class EnvironmentCrashed(RuntimeError):
    """An environment raised or its process died; the message names the environment and its index."""


class VectorEnvironment(Protocol):
    """N environments that advance together, one record each per call, as `utils/records.py` defines it."""

    @property
    def spec(self) -> EnvSpec:
        """What the environments observe and accept."""
        ...

    def reset(self) -> Arrival:
        """Abandon the open episodes, start the next one in every environment and return its first record."""
        ...

    def step(self, action: NDArray[np.float32]) -> Arrival:
        """Act in every environment.

        Args:
            action: (N, A) float32, one-hot or in [-1, 1]. The row of an environment whose last record was
                `is_last` is ignored: that environment starts its next episode instead.

        Raises:
            EnvironmentCrashed: If an environment failed; all are closed then.
        """
        ...

    def render(self) -> NDArray[np.uint8] | None:
        """Return a (height, width, 3) picture of environment 0, or None where it was not made to render."""
        ...

    def state_dict(self) -> dict[str, list[int]]:
        """Return the episode counters; an open episode is reproduced by (seed, actions), not stored here."""
        ...

    def load_state_dict(self, state: Mapping[str, list[int]]) -> None:
        """Take up the episode counters; the next `reset` starts the episodes after them."""
        ...

    def close(self) -> None:
        """Release emulators and processes; may be called twice."""
        ...


class EpisodeBook:
    """Which environments start an episode next, and the explicit seed of every episode."""

    def __init__(self, run_seed: int, num_envs: int) -> None:
        self.run_seed = run_seed
        self.num_envs = num_envs
        self._next_episode = [0] * num_envs
        self._was_last = np.zeros(num_envs, np.bool_)

    @property
    def due(self) -> NDArray[np.bool_]:
        """(N,) environments whose last record ended an episode."""
        return self._was_last.copy()

    @property
    def all(self) -> NDArray[np.bool_]:
        """(N,) every environment."""
        return np.ones(self.num_envs, np.bool_)

    def start(self, starts: NDArray[np.bool_]) -> list[int]:
        """Count one more episode where `starts` (N,) is true and return their seeds, by rising index."""
        from ..utils.seeding import episode_seed  # not at the top: it loads torch, 180 MB in every worker

        seeds = []
        for index in np.flatnonzero(starts).tolist():
            seeds.append(episode_seed(self.run_seed, index, self._next_episode[index]))
            self._next_episode[index] += 1
        return seeds

    def arrival(
        self,
        observation: dict[str, NDArray],
        reward: NDArray,
        is_terminated: NDArray[np.bool_],
        is_truncated: NDArray[np.bool_],
        is_first: NDArray[np.bool_],
    ) -> Arrival:
        """Return the records of one call; what an emulator reports on a row of `is_first` is overruled."""
        is_terminal = is_terminated & ~is_first
        self._was_last = (is_terminated | is_truncated) & ~is_first
        return Arrival(
            observation=observation,
            reward=np.where(is_first, 0, reward).astype(np.float32),
            is_first=is_first,
            is_last=self._was_last.copy(),
            is_terminal=is_terminal,
        )

    def state_dict(self) -> dict[str, list[int]]:
        """Return the index of the next episode of every environment."""
        return {"next_episode": list(self._next_episode)}

    def load_state_dict(self, state: Mapping[str, list[int]]) -> None:
        """Take up the counters.

        Raises:
            ValueError: If they were written with another number of environments.
        """
        counters = list(state["next_episode"])
        if len(counters) != self.num_envs:
            raise ValueError(f"The state has {len(counters)} environments, but env.num_envs={self.num_envs}.")
        self._next_episode = counters
