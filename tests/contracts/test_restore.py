"""Every environment resumes exactly from a saved state."""

import dataclasses
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reverie.envs import EnvConfig, Suite, VectorEnvironment, Vectorization, make_environment
from reverie.envs.config import Observations
from reverie.utils.timestep import TimeStep

in_processes = Vectorization["async"]


def gymnasium_config(env_id: str, **options: Any) -> EnvConfig:
    return EnvConfig(suite=Suite.gymnasium, id=env_id, **{"action_repeat": 1, **options})


CONFIGS: dict[str, EnvConfig] = {
    "pong": EnvConfig(),
    "pong cut short": EnvConfig(max_episode_frames=100),
    "pong of one step": EnvConfig(max_episode_frames=3),
    "sticky breakout": EnvConfig(game="breakout", sticky_actions=0.25),
    "catch": EnvConfig(suite=Suite.catch, action_repeat=1),
    "cartpole": gymnasium_config("CartPole-v1"),
    "cartpole async": gymnasium_config("CartPole-v1", vectorization=in_processes),
    "pendulum": gymnasium_config("Pendulum-v1", time_limit=13, action_repeat=2),
    "control": EnvConfig(suite=Suite.dmc, action_repeat=2, time_limit=77),
    "control with pixels": EnvConfig(
        suite=Suite.dmc, observations=Observations.pixels, action_repeat=2, time_limit=13
    ),
    "crafter": EnvConfig(suite=Suite.crafter, action_repeat=1, time_limit=60),
    "toy": gymnasium_config("toy_world:Toy-v0"),
    "toy async": gymnasium_config("toy_world:Toy-v0", vectorization=in_processes),
    # This variant has sticky actions and frame skip.
    "pong async": gymnasium_config("ALE/Pong-v5", vectorization=in_processes),
}
LONG = {"pong", "pong async"}
"""Episodes longer than the test."""

STEPS = {"pong of one step": 6, "pong cut short": 40, "control with pixels": 12, "crafter": 80}
"""Number of steps, if not 200. Starts of Atari and Crafter cost as much as hundreds of steps."""


def make(name: str, num_envs: int) -> VectorEnvironment:
    environment = make_environment(dataclasses.replace(CONFIGS[name], num_envs=num_envs), 0)
    assert isinstance(environment, VectorEnvironment)
    return environment


def random_actions(environment: VectorEnvironment, steps: int) -> NDArray[np.float32]:
    """(steps, N, A)"""
    action = environment.spec.action
    rows = np.random.default_rng(1).uniform(-1, 1, (steps, environment.spec.num_envs, action.size))
    if action.is_discrete:
        rows = np.eye(action.size)[rows.argmax(axis=-1)]
    return rows.astype(np.float32)


def stored(value: Any) -> Any:
    """Return the value as loaded from a file: equal arrays in new memory, and only plain values."""
    if isinstance(value, dict):
        return {str(key): stored(part) for key, part in value.items()}
    if isinstance(value, list):
        return [stored(part) for part in value]
    assert type(value) in (int, np.ndarray)
    return value if type(value) is int else value.copy()


def assert_same(one: TimeStep, other: TimeStep) -> None:
    for field in ("reward", "is_first", "is_last", "is_terminal"):
        left, right = getattr(one, field), getattr(other, field)
        assert (left.dtype, left.tobytes()) == (right.dtype, right.tobytes())
    assert one.observation.keys() == other.observation.keys()
    for key, value in one.observation.items():
        assert (value.dtype, value.tobytes()) == (
            other.observation[key].dtype,
            other.observation[key].tobytes(),
        )


def moments(arrivals: list[TimeStep]) -> list[int]:
    """Return steps at which to resume: the first two, around an end in environment 0, and the middle."""
    ends = [step for step, arrival in enumerate(arrivals) if arrival.is_last[0]]
    around_one = {ends[0] + offset for offset in (-1, 0, 1)} if ends else set()
    return sorted({0, 1, len(arrivals) * 3 // 4} | around_one)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_restored_environment_goes_on_bit_for_bit(name: str) -> None:
    num_envs = 2
    with closing(make(name, num_envs)) as environment:
        actions = random_actions(environment, STEPS.get(name, 200))
        arrivals, states = [environment.reset()], [stored(environment.state_dict())]
        for action in actions:
            arrivals.append(environment.step(action))
            states.append(stored(environment.state_dict()))
    assert any(arrival.is_last.any() for arrival in arrivals) == (name not in LONG)
    again = make(name, num_envs)
    for moment in moments(arrivals):
        if (
            CONFIGS[name].vectorization is not in_processes
        ):  # a process takes seconds to start: once is enough
            again.close()
            again = make(name, num_envs)
        arrival, warnings = again.restore(states[moment])
        assert warnings == []
        assert_same(arrival, arrivals[moment])
        for action, expected in zip(actions[moment:], arrivals[moment + 1 :], strict=True):
            assert_same(again.step(action), expected)
        assert stored_bytes(again.state_dict()) == stored_bytes(states[-1])
    again.close()


def stored_bytes(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: stored_bytes(part) for key, part in value.items()}
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name", ["pong cut short", "catch", "toy async"])
def test_a_reset_after_restoring_starts_the_episodes_after_the_stored_ones(name: str) -> None:
    with closing(make(name, 2)) as environment:
        environment.reset()
        environment.reset()
        state = stored(environment.state_dict())
        third = environment.reset()
    assert state["next_episode"] == [2, 2]
    with closing(make(name, 2)) as again:
        again.restore(state)
        assert_same(again.reset(), third)
