"""The contract of vector environments, tested on the real ones."""

import dataclasses
import itertools
from collections.abc import Callable
from contextlib import closing
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from numpy.typing import NDArray

from reverie.envs import CATCH_ID, EnvConfig, Suite, Vectorization, make_environment
from reverie.envs.config import Observations
from reverie.envs.registered import find_registration
from reverie.envs.spaces import convert_action, convert_observation
from reverie.envs.suites import suite_registration, with_pixels
from reverie.utils.seeding import episode_seed
from reverie.utils.timestep import EnvSpec, TimeStep

STEPS = 40


def gymnasium_config(env_id: str, **options: Any) -> EnvConfig:
    return EnvConfig(suite=Suite.gymnasium, id=env_id, **{"action_repeat": 1, **options})


CONFIGS: dict[str, EnvConfig] = {
    "pong": EnvConfig(max_episode_frames=100),
    "catch": EnvConfig(suite=Suite.catch, action_repeat=1),
    "cartpole": gymnasium_config("CartPole-v1"),
    "cartpole async": gymnasium_config("CartPole-v1", vectorization=Vectorization["async"]),
    "pendulum": gymnasium_config("Pendulum-v1", time_limit=13, action_repeat=2),
    "control": EnvConfig(suite=Suite.dmc, action_repeat=2, time_limit=27),
    "control async": EnvConfig(
        suite=Suite.dmc,
        observations=Observations.both,
        action_repeat=2,
        time_limit=27,
        vectorization=Vectorization["async"],
    ),
    "crafter": EnvConfig(suite=Suite.crafter, action_repeat=1, time_limit=25),
    "toy": gymnasium_config("toy_world:Toy-v0"),
    "toy async": gymnasium_config("toy_world:Toy-v0", vectorization=Vectorization["async"]),
}
every_environment = pytest.mark.parametrize("name", CONFIGS)
# Starting a process or a world of Crafter is slow, and three are as good a test as eight.
COUNTS = [
    (name, count) for name in CONFIGS for count in (1, 2, 3 if "async" in name or name == "crafter" else 8)
]
every_count = pytest.mark.parametrize(("name", "num_envs"), COUNTS)


def random_actions(size: int, is_discrete: bool, num_envs: int) -> NDArray[np.float32]:
    """Return actions (STEPS, N, A). Row i is the same for every number of environments."""
    rows = [np.random.default_rng(i).uniform(-1, 1, (STEPS, size)) for i in range(num_envs)]
    actions = np.stack(rows, axis=1)
    if is_discrete:
        actions = np.eye(size)[actions.argmax(axis=-1)]
    return actions.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Stream:
    """The records of an environment that was played."""

    spec: EnvSpec
    steps: list[TimeStep]
    copies: list[list[NDArray]]
    """Contents of each step's arrays at its arrival."""


def play(name: str, num_envs: int, run_seed: int) -> Stream:
    config = dataclasses.replace(CONFIGS[name], num_envs=num_envs)
    with closing(make_environment(config, run_seed)) as environment:
        spec = environment.spec
        played = Stream(spec, [], [])
        for action in [None, *random_actions(spec.action.size, spec.action.is_discrete, num_envs)]:
            played.steps.append(environment.reset() if action is None else environment.step(action))
            played.copies.append([array.copy() for array in arrays(played.steps[-1])])
        return played


stream = cache(play)


def assert_same(one: list[TimeStep], other: list[TimeStep]) -> None:
    for left, right in zip(one, other, strict=True):
        for field in ("reward", "is_first", "is_last", "is_terminal"):
            np.testing.assert_array_equal(getattr(left, field), getattr(right, field))
        assert left.observation.keys() == right.observation.keys()
        for key in left.observation:
            np.testing.assert_array_equal(left.observation[key], right.observation[key])


@every_count
def test_the_same_seed_and_actions_give_the_same_stream(name: str, num_envs: int) -> None:
    assert_same(stream(name, num_envs, 0).steps, play(name, num_envs, 0).steps)


@every_environment
def test_another_seed_gives_another_stream(name: str) -> None:
    with pytest.raises(AssertionError):
        assert_same(stream(name, 2, 0).steps, play(name, 2, 1).steps)


# --- a slow reference: one bare environment, one loop, one explicit seed per episode ---


Bare = tuple[Callable[[int], dict[str, NDArray]], Callable[[NDArray], tuple]]


def bare_pong(config: EnvConfig) -> Bare:
    env = AtariVectorEnv(
        config.game, 1, img_height=64, img_width=64, grayscale=False, stack_num=1, frameskip=4,
        max_num_frames_per_episode=config.max_episode_frames, reward_clipping=False, use_fire_reset=False,
        # env.noop_max=30, because ale-py samples below its argument.
        noop_max=31,
    )  # fmt: skip

    def step(action: NDArray) -> tuple:
        pixels, reward, terminated, truncated, _ = env.step(np.array([action.argmax()]))
        return {"image": pixels[0, 0].copy()}, reward[0], terminated[0], truncated[0]

    return lambda seed: {"image": env.reset(seed=np.array([seed]))[0][0, 0].copy()}, step


def bare_gymnasium(config: EnvConfig) -> Bare:
    if config.suite in (Suite.dmc, Suite.crafter):
        registered = suite_registration(config)
    else:
        registered = find_registration(CATCH_ID if config.suite is Suite.catch else config.id)
    env = with_pixels(gymnasium.make(registered, max_episode_steps=config.time_limit), config)

    def observe(observation: Any) -> dict[str, NDArray]:
        return convert_observation(env.observation_space, observation, 64)

    def step(action: NDArray) -> tuple:
        total, observation, terminated, truncated = 0.0, None, False, False
        for _ in range(config.action_repeat):
            observation, reward, terminated, truncated, _ = env.step(convert_action(env.action_space, action))
            total += float(reward)
            if terminated or truncated:
                break
        return observe(observation), total, terminated, truncated

    return lambda seed: observe(env.reset(seed=seed)[0]), step


def slow_stream(config: EnvConfig, index: int, actions: NDArray[np.float32]) -> list[tuple]:
    """Return records (observation, reward, is_first, is_last, is_terminal) of environment `index`."""
    reset, step = bare_pong(config) if config.suite is Suite.atari else bare_gymnasium(config)
    records: list[tuple] = [(reset(episode_seed(0, index, 0)), 0.0, True, False, False)]
    episode = 0
    for action in actions:
        if records[-1][3]:
            episode += 1
            records.append((reset(episode_seed(0, index, episode)), 0.0, True, False, False))
            continue
        observation, reward, terminated, truncated = step(action)
        records.append((observation, np.float32(reward), False, terminated or truncated, terminated))
    return records


@every_count
def test_each_environment_of_a_vector_is_a_lone_one_run_with_its_own_seeds(name: str, num_envs: int) -> None:
    played = stream(name, num_envs, 0)
    actions = random_actions(played.spec.action.size, played.spec.action.is_discrete, num_envs)
    for index in {0, num_envs - 1}:
        expected = slow_stream(CONFIGS[name], index, actions[:, index])
        for arrival, (observation, *scalars) in zip(played.steps, expected, strict=True):
            fields = (arrival.reward, arrival.is_first, arrival.is_last, arrival.is_terminal)
            assert [field[index] for field in fields] == scalars
            assert arrival.observation.keys() == observation.keys()
            for key, value in observation.items():
                np.testing.assert_array_equal(arrival.observation[key][index], value)


@every_count
def test_a_first_record_follows_each_last_one_and_nothing_else(name: str, num_envs: int) -> None:
    arrivals = stream(name, num_envs, 0).steps
    assert arrivals[0].is_first.all()
    # Without an end, the test would be vacuous.
    assert any(arrival.is_last.any() for arrival in arrivals)
    for before, after in itertools.pairwise(arrivals):
        np.testing.assert_array_equal(after.is_first, before.is_last)


@every_count
def test_a_first_record_has_no_reward_and_is_not_the_end(name: str, num_envs: int) -> None:
    for arrival in stream(name, num_envs, 0).steps:
        assert not arrival.reward[arrival.is_first].any()
        assert not (arrival.is_first & arrival.is_last).any()
        assert not (arrival.is_terminal & ~arrival.is_last).any()


@pytest.mark.parametrize("name", ["pong", "pendulum", "control", "crafter"])
def test_a_time_limit_is_not_a_terminal(name: str) -> None:
    arrivals = stream(name, 2, 0).steps
    assert any(arrival.is_last.any() for arrival in arrivals)
    assert not any(arrival.is_terminal.any() for arrival in arrivals)


@pytest.mark.parametrize("name", ["catch", "cartpole", "cartpole async", "toy"])
def test_an_episode_that_ends_by_itself_is_terminal(name: str) -> None:
    for arrival in stream(name, 2, 0).steps:
        np.testing.assert_array_equal(arrival.is_terminal, arrival.is_last)


@every_environment
def test_what_arrives_has_the_shapes_and_dtypes_of_the_spec(name: str) -> None:
    spec, arrival = stream(name, 2, 0).spec, stream(name, 2, 0).steps[0]
    assert {key: (value.shape, value.dtype) for key, value in arrival.observation.items()} == {
        key: ((2, *part.shape), part.dtype) for key, part in spec.observation.items()
    }
    flags = (arrival.is_first, arrival.is_last, arrival.is_terminal)
    assert arrival.reward.dtype == np.float32
    assert all(flag.dtype == np.bool_ for flag in flags)


@every_environment
def test_arrivals_own_their_memory_and_are_never_written_again(name: str) -> None:
    played = stream(name, 2, 0)
    kept = [arrays(arrival) for arrival in played.steps]
    assert all(array.flags.owndata for row in kept for array in row)
    for row, copy in zip(kept, played.copies, strict=True):
        for array, expected in zip(row, copy, strict=True):
            np.testing.assert_array_equal(array, expected)


def arrays(arrival: TimeStep) -> list[NDArray]:
    return [
        *arrival.observation.values(),
        arrival.reward,
        arrival.is_first,
        arrival.is_last,
        arrival.is_terminal,
    ]
