"""Log the seed and actions of every open episode, and replay them to restore environments."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..utils.errors import UserError
from ..utils.timestep import EnvSpec, TimeStep
from ..utils.units import count_text
from .backend import Restarts

OpenEpisode = tuple[int, NDArray[np.float32]]
"""Seed and actions (T, A)."""

_FIRST_ROWS = 256


class ActionLog:
    """Actions of one open episode. At most twice the required memory is allocated."""

    def __init__(self, action_size: int) -> None:
        self._size = action_size
        self.clear()

    @property
    def nbytes(self) -> int:
        """Number of allocated bytes."""
        return self._rows.nbytes

    @property
    def actions(self) -> NDArray[np.float32]:
        """A copy of all actions (T, A), oldest first."""
        return self._rows[: self._length].copy()

    def append(self, action: NDArray[np.float32]) -> None:
        """Append one action (A,)."""
        if self._length == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[self._length] = action
        self._length += 1

    def clear(self) -> None:
        """Delete all actions and free their memory."""
        self._rows, self._length = np.empty((_FIRST_ROWS, self._size), np.float32), 0

    @staticmethod
    def most_bytes(action_size: int, steps: int) -> int:
        """Return the maximum number of bytes that an episode of `steps` steps needs."""
        return max(_FIRST_ROWS, 1 << (steps - 1).bit_length()) * action_size * 4


class EpisodeLog:
    """Episode counters, seeds and actions of N environments. The run numbers them starting with `first`."""

    def __init__(self, run_seed: int, num_envs: int, action_size: int, first: int = 0) -> None:
        self._run_seed, self._first = run_seed, first
        self._next_episode = [0] * num_envs
        self._seeds = [0] * num_envs
        self._logs = [ActionLog(action_size) for _ in range(num_envs)]

    @property
    def nbytes(self) -> int:
        """Size of all logged actions in bytes."""
        return sum(log.nbytes for log in self._logs)

    def begin(self, indices: Sequence[int]) -> dict[int, int]:
        """Start the next episode of each environment in `indices`, and return the seeds by index."""
        # Imported here because this import loads torch (180 MB in each worker).
        from ..utils.seeding import episode_seed

        for index in indices:
            number = self._first + index
            self._seeds[index] = episode_seed(self._run_seed, number, self._next_episode[index])
            self._next_episode[index] += 1
            self._logs[index].clear()
        return {index: self._seeds[index] for index in indices}

    def add(self, action: NDArray[np.float32], step: TimeStep) -> None:
        """Log the actions (N, A) that led to `step`, and delete the actions of finished episodes.

        A failed environment keeps its actions until the next episode starts. They mark its episode as failed.
        """
        is_first, is_last = step.is_first.tolist(), step.is_last.tolist()
        for index, log in enumerate(self._logs):
            if is_last[index] and index not in step.failed:
                log.clear()
            elif not is_first[index]:
                log.append(action[index])

    def failed(self, step: TimeStep) -> tuple[int, ...]:
        """Return the environments in which an unfinished episode ends with `step`."""
        ended = np.flatnonzero(step.is_last).tolist()
        return tuple(index for index in ended if len(self._logs[index].actions))

    def progress(self, index: int) -> tuple[int, int]:
        """Return the number of an environment's last episode (counted from 0) and its number of steps."""
        return self._next_episode[index] - 1, len(self._logs[index].actions)

    def open_episode(self, index: int) -> OpenEpisode:
        """Return the open episode of environment `index`."""
        return self._seeds[index], self._logs[index].actions

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, seeds and actions (T, A) of all open episodes, with keys such as 'env000'."""
        actions = {_key(index): log.actions for index, log in enumerate(self._logs)}
        return {"next_episode": list(self._next_episode), "seeds": list(self._seeds), "actions": actions}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a result of `state_dict`.

        Raises:
            UserError: If the state is from a different number of environments.
        """
        counters = [int(counter) for counter in state["next_episode"]]
        held, asked = len(counters), len(self._next_episode)
        if held != asked:
            raise UserError(
                f"The checkpoint contains {count_text(held, 'environment')}, but env.num_envs={asked}. "
                f"Set env.num_envs={held}."
            )
        self._next_episode = counters
        self._seeds = [int(seed) for seed in state["seeds"]]
        for index, log in enumerate(self._logs):
            log.clear()
            for action in state["actions"][_key(index)]:
                log.append(action)


def _key(index: int) -> str:
    return f"env{index:03d}"


def replay_actions(
    restarts: Restarts, spec: EnvSpec, episodes: Mapping[int, OpenEpisode]
) -> tuple[TimeStep, set[int]]:
    """Replay `episodes`, given by environment index, so that all reach their last action in the same call.

    The number of calls is the number of actions in the longest episode, plus one.

    Returns:
        The records of the last call, and the indices of episodes that failed or ended too early.
    """
    calls = max((len(actions) for _, actions in episodes.values()), default=0)
    action = np.zeros((spec.num_envs, spec.action.size), np.float32)
    step, diverged = TimeStep.empty(spec), set()
    for call in range(calls + 1):
        seeds, idle = {}, []
        for index in range(spec.num_envs):
            seed, actions = episodes.get(index, (0, action[:0]))
            # Turn 0 starts the episode, and turn t executes its t-th action.
            turn = call - (calls - len(actions))
            if index not in episodes or index in diverged or turn < 0:
                idle.append(index)
            elif turn == 0:
                seeds[index] = seed
            else:
                action[index] = actions[turn - 1]
        step, failures = restarts.step_or_reset(action, seeds, idle)
        acted = set(episodes) - set(seeds) - set(idle)
        diverged |= {index for index in acted if step.is_last[index] or index in failures}
    return step, diverged


def matches(step: TimeStep, stored: TimeStep, index: int) -> bool:
    """Return whether environment `index` has exactly the stored observation and reward, bit for bit."""
    if not stored.is_first[index] and step.reward[index] != stored.reward[index]:
        return False
    values = stored.observation.items()
    return all(step.observation[key][index].tobytes() == value[index].tobytes() for key, value in values)


def state_form(spec: EnvSpec, lengths: list[int]) -> dict[str, Any]:
    """Return an example state for structural checks. Its open episodes have `lengths` actions."""
    numbers, width = [0] * spec.num_envs, spec.action.size
    actions = {_key(index): np.empty((length, width), np.float32) for index, length in enumerate(lengths)}
    arrival = TimeStep.empty(spec).arrays()
    return {"next_episode": numbers, "seeds": numbers, "actions": actions, "arrival": arrival}
