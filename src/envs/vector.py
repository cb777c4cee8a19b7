"""N environments as records: explicit seeds, every episode reproducible, and resumed where it was."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..utils.timestep import Arrival, EnvSpec
from .backend import EnvironmentCrashed, Outcome, Simulators
from .episode_log import ActionLog, EpisodeBook
from .restarts import Restarts
from .restore import play_again, shows


class VectorEnvironment:
    """N environments that advance together, one record each per call, as `utils/records.py` defines it.

    An environment that fails is replaced by a new one. Its episode ends as truncated, with the last
    observation once more and no reward; the others go on undisturbed.

    Args:
        simulators: The environments themselves.
        run_seed: Seed of the run; the seeds of all episodes of all environments come from it.
        max_restarts: Environments that may fail before it is a crash.
    """

    def __init__(self, simulators: Simulators, run_seed: int, max_restarts: int) -> None:
        self.spec: EnvSpec = simulators.spec
        """What the environments observe and accept."""

        self._simulators = simulators
        self._restarts = Restarts(simulators, max_restarts, "ends as truncated")
        self._episodes = EpisodeBook(run_seed, self.spec.num_envs, self.spec.action.size)
        self._arrival: Arrival | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the actions of open episodes and of the last arrival; emulators and workers apart."""
        return self._episodes.nbytes + (_nbytes(self._arrival) if self._arrival else 0)

    @property
    def planned_bytes(self) -> int | None:
        """What `nbytes` may grow to; None where nothing bounds the length of an episode."""
        steps = self.spec.longest_episode
        if steps is None:
            return None
        record = sum(part.nbytes for part in self.spec.observation.values()) + 4 + 3  # reward and flags
        return self.spec.num_envs * (ActionLog.most_bytes(self.spec.action.size, steps) + record)

    def reset(self) -> Arrival:
        """Abandon the open episodes, start the next one in every environment and return its first record."""
        nothing = np.zeros((self.spec.num_envs, self.spec.action.size), np.float32)
        return self._deliver(nothing, self._episodes.begin(range(self.spec.num_envs)))

    def step(self, action: NDArray[np.float32]) -> Arrival:
        """Act in every environment.

        Args:
            action: (N, A) float32, one-hot or in [-1, 1]. The row of an environment whose last record was
                `is_last` is ignored: that environment starts its next episode instead.

        Raises:
            EnvironmentCrashed: If environments failed more than `max_restarts` times. All are closed then;
                the step is complete all the same, and `state_dict` is that of its end.
        """
        is_last = self._require_arrival().is_last
        seeds = self._episodes.begin(np.flatnonzero(is_last).tolist()) if is_last.any() else {}
        return self._deliver(action, seeds)

    def render(self) -> NDArray[np.uint8] | None:
        """Return a (height, width, 3) picture of environment 0, or None where it was not made to render."""
        return self._simulators.render()

    def state_dict(self) -> dict[str, Any]:
        """Return all that `restore` needs: counters, seeds, actions of open episodes, the last arrival.

        A nest of lists of integers and arrays; none of the arrays is written again.
        """
        arrival = self._require_arrival()
        last = {field.name: getattr(arrival, field.name) for field in fields(arrival)}
        return {**self._episodes.state_dict(), "arrival": last}

    def restore(self, state: Mapping[str, Any]) -> tuple[Arrival, list[str]]:
        """Play the open episodes again, and return the arrival after which the state was taken.

        An episode that does not lead to the stored observation and reward, bit by bit, ends in that arrival
        as truncated; one that has only begun goes on from what the environment shows now. Both are told.
        COST: the steps of the longest open episode, at the speed of the environments.

        Args:
            state: What `state_dict` returned, of environments with the same settings.

        Returns:
            The arrival, and one sentence for every environment that is not where it was.

        Raises:
            UserError: If it was written with another number of environments.
            EnvironmentCrashed: As in `step`.
        """
        self._episodes.load_state_dict(state)
        stored = Arrival(**state["arrival"])
        plays = {index: self._episodes.play(index) for index in np.flatnonzero(~stored.is_last).tolist()}
        outcome, strayed = play_again(self._restarts.advance, self.spec, plays)
        self._raise_if_crashed()
        strayed |= {index for index in plays if not shows(outcome, stored, index)}
        self._arrival = _amended(stored, outcome, strayed)
        warnings = [self._stray(index) for index in sorted(strayed)]
        return self._arrival, warnings

    def close(self) -> None:
        """Release emulators and processes; may be called twice."""
        self._simulators.close()

    def _deliver(self, action: NDArray[np.float32], seeds: Mapping[int, int]) -> Arrival:
        """Start episodes with `seeds`, act in the other environments, and return what arrives."""
        outcome = self._restarts.advance(action, seeds)
        for index in outcome.failures:
            self._end(outcome, index)
        is_first = np.zeros(self.spec.num_envs, np.bool_)
        reward, is_last, is_terminal = outcome.reward, outcome.is_over, outcome.is_terminated
        if seeds:  # what an emulator reports on the first record of an episode is overruled
            is_first[list(seeds)] = True
            reward = np.where(is_first, 0, reward)
            is_last, is_terminal = is_last & ~is_first, is_terminal & ~is_first
        arrival = Arrival(
            observation=outcome.observation,
            reward=np.array(reward, np.float32),
            is_first=is_first,
            is_last=is_last,
            is_terminal=np.array(is_terminal, np.bool_),
        )
        self._episodes.add(action, arrival)
        self._arrival = arrival
        self._raise_if_crashed()
        return arrival

    def _end(self, outcome: Outcome, index: int) -> None:
        """Fill the row of an environment that gave no record: its episode ends where it was last seen."""
        shown = outcome.observation if self._arrival is None else self._arrival.observation
        seen = {key: value[index] for key, value in shown.items()}
        outcome.put(index, seen, reward=0.0, terminated=False, truncated=True)

    def _stray(self, index: int) -> str:
        """End the episode of an environment that could not be brought back; return what to tell."""
        what = f"{self.spec.name}: episode {self._episodes.episode(index)} of environment {index}"
        steps = len(self._episodes.play(index)[1])
        self._episodes.close(index)
        if steps == 0:
            return f"{what} began with another observation than before; it goes on from the new one."
        return (
            f"{what} could not be brought back: its seed and {steps:,} actions lead elsewhere than before"
            " (an environment that is not deterministic, or failed). The episode ends here as truncated."
        )

    def _require_arrival(self) -> Arrival:
        assert self._arrival is not None, "reset or restore comes first"
        return self._arrival

    def _raise_if_crashed(self) -> None:
        if self._restarts.crash is not None:
            self.close()
            raise EnvironmentCrashed(self._restarts.crash)


def _amended(stored: Arrival, outcome: Outcome, strayed: set[int]) -> Arrival:
    """Return `stored` where the episodes of `strayed` are over, or show what they begin with now."""
    is_last = stored.is_last.copy()
    observation = {key: value.copy() for key, value in stored.observation.items()}
    for index in strayed:
        is_last[index] = not stored.is_first[index]
        if stored.is_first[index]:
            for key, value in observation.items():
                value[index] = outcome.observation[key][index]
    return replace(stored, observation=observation, is_last=is_last)


def _nbytes(arrival: Arrival) -> int:
    flags = (arrival.reward, arrival.is_first, arrival.is_last, arrival.is_terminal)
    return sum(array.nbytes for array in (*arrival.observation.values(), *flags))
