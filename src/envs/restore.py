"""Bring environments back to an earlier state: replay open episodes from their seeds and actions."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..utils.timestep import EnvSpec, TimeStep
from .backend import Failures

StepOrReset = Callable[[NDArray[np.float32], Mapping[int, int], Collection[int]], tuple[TimeStep, Failures]]
"""`EnvBackend.step_or_reset`."""

OpenEpisode = tuple[int, NDArray[np.float32]]
"""Seed and actions (T, A) of an episode."""


def replay_actions(
    step_or_reset: StepOrReset, spec: EnvSpec, episodes: Mapping[int, OpenEpisode]
) -> tuple[TimeStep, set[int]]:
    """Replay `episodes`, by index of the environment, so that all reach their last action in the same call.

    Native emulators advance together, so an environment with fewer actions starts later. COST: one call more
    than the longest episode has actions.

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
            turn = call - (calls - len(actions))  # 0 starts, t acts for the t-th time
            if index not in episodes or index in diverged or turn < 0:
                idle.append(index)
            elif turn == 0:
                seeds[index] = seed
            else:
                action[index] = actions[turn - 1]
        step, failures = step_or_reset(action, seeds, idle)
        acted = set(episodes) - set(seeds) - set(idle)
        diverged |= {index for index in acted if step.is_last[index] or index in failures}
    return step, diverged


def matches(step: TimeStep, stored: TimeStep, index: int) -> bool:
    """Whether environment `index` has the observation and reward that are stored, bit by bit."""
    has_observation = all(
        step.observation[key][index].tobytes() == value[index].tobytes()
        for key, value in stored.observation.items()
    )
    has_reward = stored.is_first[index] or step.reward[index] == stored.reward[index]
    return bool(has_observation and has_reward)


def state_form(spec: EnvSpec, lengths: list[int]) -> dict[str, Any]:
    """Return a state of environments whose open episodes have so many actions, to compare the form with."""
    count = spec.num_envs
    observation = {key: np.empty((count, *each.shape), each.dtype) for key, each in spec.observation.items()}
    flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), np.empty(count, np.bool_))
    actions = [np.empty((length, spec.action.size), np.float32) for length in lengths]
    return {
        "next_episode": [0] * count,
        "seeds": [0] * count,
        "actions": {f"env{index:03d}": each for index, each in enumerate(actions)},
        "arrival": {"observation": observation, "reward": np.empty(count, np.float32), **flags},
    }
