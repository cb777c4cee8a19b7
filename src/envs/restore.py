"""Bringing environments back to where they were: open episodes are played again from seed and actions."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..utils.timestep import Arrival, EnvSpec
from .backend import Outcome

Advance = Callable[[NDArray[np.float32], Mapping[int, int], Collection[int]], Outcome]
"""`Simulators.advance`."""

Play = tuple[int, NDArray[np.float32]]
"""Seed and actions (T, A) of an episode."""


def play_again(advance: Advance, spec: EnvSpec, plays: Mapping[int, Play]) -> tuple[Outcome, set[int]]:
    """Play `plays`, by index of the environment, so that all come to their last action in the same call.

    Native emulators advance all together: who has less to play starts later. COST: as many calls as the
    longest episode has actions, and one.

    Returns:
        The outcome of the last call, and the indices of episodes that failed, or ended before their time.
    """
    calls = max((len(actions) for _, actions in plays.values()), default=0)
    action = np.zeros((spec.num_envs, spec.action.size), np.float32)
    outcome, strayed = Outcome.empty(spec), set()
    for call in range(calls + 1):
        seeds, idle = {}, []
        for index in range(spec.num_envs):
            seed, actions = plays.get(index, (0, action[:0]))
            turn = call - (calls - len(actions))  # 0 starts, t acts for the t-th time
            if index not in plays or index in strayed or turn < 0:
                idle.append(index)
            elif turn == 0:
                seeds[index] = seed
            else:
                action[index] = actions[turn - 1]
        outcome = advance(action, seeds, idle)
        acted = set(plays) - set(seeds) - set(idle)
        strayed |= {index for index in acted if outcome.is_over[index] or index in outcome.failures}
    return outcome, strayed


def shows(outcome: Outcome, arrival: Arrival, index: int) -> bool:
    """Whether environment `index` shows the observation and reward of `arrival`, bit by bit."""
    is_seen = all(
        outcome.observation[key][index].tobytes() == value[index].tobytes()
        for key, value in arrival.observation.items()
    )
    is_paid = arrival.is_first[index] or np.float32(outcome.reward[index]) == arrival.reward[index]
    return bool(is_seen and is_paid)


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
