"""Environments that cannot be replayed are detected, and the others are not disturbed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import toy_world

from reverie.envs import EnvConfig, Suite, VectorEnvironment, make_environment
from reverie.utils.seeding import episode_seed
from reverie.utils.timestep import TimeStep

UP = np.tile(np.array([0, 1], np.float32), (2, 1))


def run_seed(matches: Callable[[list[int]], bool]) -> int:
    """Return a run seed with matching first seeds of environments 0 and 1. Odd seeds of `ToyWorld` drift."""
    return next(seed for seed in range(1000) if matches([episode_seed(seed, index, 0) for index in range(2)]))


def drifting_in_1(steps: int) -> int:
    """Return a run seed with an even and an odd seed, where both episodes last longer than `steps`."""

    def matches(seeds: list[int]) -> bool:
        limits = [int(np.random.default_rng(seed).integers(3, 8)) for seed in seeds]
        return [seed % 2 for seed in seeds] == [0, 1] and min(limits) > steps

    return run_seed(matches)


def make(seed: int) -> VectorEnvironment:
    config = EnvConfig(suite=Suite.gymnasium, id="toy_world:Toy-v0", action_repeat=1, num_envs=2)
    environment = make_environment(config, seed)
    assert isinstance(environment, VectorEnvironment)
    return environment


def played(seed: int, steps: int) -> tuple[list[TimeStep], dict[str, Any]]:
    """Return the arrivals of `steps` steps and ten more, and the state in between."""
    environment = make(seed)
    arrivals = [environment.reset(), *[environment.step(UP) for _ in range(steps)]]
    state = environment.state_dict()
    arrivals += [environment.step(UP) for _ in range(10)]
    environment.close()
    return arrivals, state


def assert_row(arrival: TimeStep, expected: TimeStep, index: int) -> None:
    for key, value in expected.observation.items():
        np.testing.assert_array_equal(arrival.observation[key][index], value[index])
    for field in ("reward", "is_first", "is_last", "is_terminal"):
        assert getattr(arrival, field)[index] == getattr(expected, field)[index]


def test_another_observation_ends_that_episode_as_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = drifting_in_1(steps=2)
    arrivals, state = played(seed, 2)
    monkeypatch.setattr(toy_world, "pose_drift", 0.5)
    environment = make(seed)
    arrival, warnings = environment.restore(state)
    assert len(warnings) == 1
    assert warnings[0].startswith("toy_world:Toy-v0: episode 0 of environment 1 could not be restored")
    assert "2 actions" in warnings[0]
    assert arrival.is_last.tolist() == [False, True]
    assert arrival.is_terminal.tolist() == [False, False]
    # A checkpoint of this step still knows that the episode is not finished.
    again = make(seed)
    restored, warnings = again.restore(environment.state_dict())
    again.close()
    assert (arrival.failed, restored.failed, warnings) == ((1,), (1,), [])
    np.testing.assert_array_equal(arrival.observation["pose"], arrivals[2].observation["pose"])
    assert arrival.reward.tolist() == arrivals[2].reward.tolist()
    following = [environment.step(UP) for _ in range(10)]
    for one, expected in zip(following, arrivals[3:], strict=True):
        assert_row(one, expected, 0)
    assert following[0].is_first.tolist() == [False, True]
    assert environment.state_dict()["seeds"][1] in [episode_seed(seed, 1, episode) for episode in range(1, 9)]
    environment.close()


@pytest.mark.parametrize("drift", [-4, 1])
def test_an_episode_of_another_length_is_noticed_only_where_it_shows(
    drift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An episode that ends too early cannot be restored. One that would end later can."""
    seed = drifting_in_1(steps=3)
    arrivals, state = played(seed, 3)
    monkeypatch.setattr(toy_world, "limit_drift", drift)
    environment = make(seed)
    arrival, warnings = environment.restore(state)
    assert arrival.is_last.tolist() == [False, drift < 0]
    assert len(warnings) == (drift < 0)
    assert_row(environment.step(UP), arrivals[4], 0)
    environment.close()


def test_an_episode_that_only_began_goes_on_from_what_is_there_now(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = drifting_in_1(steps=2)
    arrivals, state = played(seed, 0)
    monkeypatch.setattr(toy_world, "pose_drift", 0.5)
    environment = make(seed)
    arrival, warnings = environment.restore(state)
    assert len(warnings) == 1
    assert "episode 0 of environment 1 restarted with a different first observation" in warnings[0]
    assert arrival.is_first.tolist() == [True, True]
    assert not arrival.is_last.any()
    shift = arrival.observation["pose"] - arrivals[0].observation["pose"]
    np.testing.assert_allclose(shift, [[0] * 4, [0.5] * 4], atol=1e-6)
    assert environment.step(UP).is_first.tolist() == [False, False]
    environment.close()


def test_a_finished_episode_is_not_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its actions were dropped at its end, and whether it can be repeated does not matter."""
    seed = drifting_in_1(steps=2)
    environment = make(seed)
    arrival = environment.reset()
    while not arrival.is_last[1]:
        arrival = environment.step(UP)
    state = environment.state_dict()
    environment.close()
    assert state["actions"]["env001"].shape == (0, 2)
    monkeypatch.setattr(toy_world, "pose_drift", 0.5)
    again = make(seed)
    restored, warnings = again.restore(state)
    assert warnings == []
    assert restored.failed == ()
    assert_row(restored, arrival, 1)
    again.close()


def test_a_state_of_another_number_of_environments_is_refused() -> None:
    environment = make_environment(EnvConfig(suite=Suite.catch, action_repeat=1, num_envs=3), 0)
    environment.reset()
    state = environment.state_dict()
    environment.close()
    other = make_environment(EnvConfig(suite=Suite.catch, action_repeat=1, num_envs=2), 0)
    with pytest.raises(ValueError, match=r"contains 3 environments, but env\.num_envs=2"):
        other.restore(state)
    other.close()
