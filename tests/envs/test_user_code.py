"""Values passed to an environment's code and back: copies, kinds of rewards, and stored values."""

import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from reverie.envs import EnvConfig, EnvironmentCrashed, Suite, make_environment, make_single
from reverie.envs.backend import EnvironmentFailed
from reverie.envs.registered import register_maker
from reverie.envs.workers import as_number
from reverie.utils.errors import UserError

# Gymnasium warns about the buffer that `Motor` returns repeatedly.
pytestmark = pytest.mark.filterwarnings("ignore:.*share an object")


class Motor(gymnasium.Env[Any, Any]):
    """Scales each action in place, and always returns the same buffer."""

    observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space: spaces.Space[Any] = spaces.Box(-1, 1, (1,), np.float32)
    buffer: Any = np.zeros(1, np.float32)
    reward: Any = 0.0

    def __init__(self, gears: Any = (), **others: Any) -> None:
        self.seen: list[Any] = []
        if gears:
            gears.append(len(gears))
        self.gears = gears

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.buffer[...] = 0
        return self.buffer, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.seen.append(action.tolist())
        action //= 10
        self.buffer += 1
        return self.buffer, self.reward, False, False, {}


class Scaling(gymnasium.ActionWrapper[Any, Any, Any]):
    """A wrapper that modifies the action's array."""

    def action(self, action: Any) -> Any:
        self.unwrapped.seen.append(action.tolist())  # pyright: ignore[reportAttributeAccessIssue]
        action[...] = 0
        return action


def config_of(maker: Callable[..., gymnasium.Env[Any, Any]], **options: Any) -> EnvConfig:
    return EnvConfig(suite=Suite.gymnasium, id=register_maker(maker), max_restarts=0, **options)


def motor(**members: Any) -> type[Motor]:
    return type("Motor", (Motor,), members)


@pytest.mark.parametrize(
    ("space", "chosen"),
    [
        (spaces.Box(-30, 30, (2,), np.float32), [20, 30]),
        (spaces.MultiDiscrete([40, 40]), [20, 30]),
        (spaces.MultiDiscrete(np.array([[40, 40]])), [[20, 30]]),
        (spaces.MultiBinary(2), [1, 1]),
    ],
)
@pytest.mark.parametrize("wrappers", [[], [f"{__name__}.Scaling"]])
def test_every_repetition_gets_the_action_that_was_chosen(
    space: spaces.Space[Any], chosen: Any, wrappers: list[str]
) -> None:
    env = make_single(config_of(motor(action_space=space), action_repeat=3, wrappers=wrappers))
    env.reset(seed=0)
    action = np.array(chosen, space.dtype)
    env.step(action)
    assert env.unwrapped.seen[:: 1 + len(wrappers)] == [chosen] * 3  # pyright: ignore[reportAttributeAccessIssue]
    assert action.tolist() == chosen


def test_a_step_keeps_its_observation_when_the_environment_writes_into_its_buffer_again() -> None:
    image = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    members: Any = {"observation_space": image, "buffer": np.zeros((64, 64, 3), np.uint8)}
    environment = make_environment(config_of(motor(**members), num_envs=2, action_repeat=1), 0)
    steps = [environment.reset()]
    steps += [environment.step(np.zeros((2, 1), np.float32)) for _ in range(2)]
    # Both environments write into the class's single buffer, one after the other.
    assert [step.observation["image"][:, 0, 0, 0].tolist() for step in steps] == [[0, 0], [1, 2], [3, 4]]


def test_bytes_are_scaled_unless_the_run_was_saved_before_they_were() -> None:
    image = spaces.Dict(map=spaces.Box(0, 4, (64, 64), np.uint8), speed=spaces.Box(-1, 1, (1,), np.float32))
    shown: Any = {"map": np.full((64, 64), 4, np.uint8), "speed": np.zeros(1, np.float32)}

    class Map(Motor):
        observation_space = image

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
            gymnasium.Env.reset(self, seed=seed)
            return shown, {}

    seen = {}
    for scale_bytes in (True, False):
        environment = make_environment(config_of(Map, scale_bytes=scale_bytes), 0)
        seen[scale_bytes] = int(environment.reset().observation["map"].max()), len(environment.spec.notices)
    assert seen == {True: (255, 1), False: (4, 0)}


def test_environments_do_not_share_their_arguments() -> None:
    gears: list[int] = [7]
    config = config_of(motor(), kwargs={"gears": gears})
    made = [make_single(config).unwrapped for _ in range(2)]
    assert [each.gears for each in made] == [[7, 1], [7, 1]] and gears == [7]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_picture_of_atari_is_not_the_observation() -> None:
    env = make_single(EnvConfig(game="pong"), render_mode="rgb_array")
    observation, _ = env.reset(seed=0)
    picture: Any = env.render()
    before = observation.copy()
    picture[...] = 0
    assert observation.any() and (observation == before).all()


LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    "reward",
    [
        -0.25, np.float16(-0.25), np.array(-0.25), np.array([-0.25]), np.array([[-0.25]]),
        torch.tensor(-0.25), torch.tensor([[-0.25]], dtype=torch.bfloat16),
        torch.tensor([-0.25], requires_grad=True) * 1,
    ],
)  # fmt: skip
def test_a_reward_of_one_number_is_that_number(reward: Any) -> None:
    assert as_number(reward) == -0.25


def test_whole_numbers_flags_and_the_largest_number_are_rewards() -> None:
    for reward in (3, True, np.int64(-2), np.bool_(True), LARGEST, -LARGEST):
        assert as_number(reward) == float(reward) == np.float32(as_number(reward))


@pytest.mark.parametrize(
    "reward",
    [
        -sys.float_info.max, LARGEST * 1.0000001, np.float64(1e39), 10**400, np.inf, np.nan, None, "1", b"1",
        [1.0, 2.0], np.ones(2), np.ones(0), np.array(["1"]), torch.ones(2), torch.ones(0), 1j,
        torch.tensor(1e39, dtype=torch.float64),
    ],
)  # fmt: skip
def test_what_is_not_one_number_that_float32_can_store_is_not_a_reward(reward: Any) -> None:
    with pytest.raises(
        EnvironmentFailed, match=r"(?s)its reward is .*, which is not a single finite float32"
    ):
        as_number(reward)


def test_the_sum_of_repeated_rewards_is_finite_in_float32() -> None:
    environment = make_environment(config_of(motor(reward=LARGEST / 2), action_repeat=3), 0)
    environment.reset()
    with pytest.raises(EnvironmentCrashed, match=r"its reward is 5\.1\d+e\+38, which is not a single finite"):
        environment.step(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_an_action_that_is_not_finite_is_refused_before_it_is_stored(wrong: float) -> None:
    environment = make_environment(EnvConfig(suite=Suite.catch, action_repeat=1), 0)
    environment.reset()
    with pytest.raises(UserError, match="catch: the policy chose an action that is not finite"):
        environment.step(np.full((1, 3), wrong, np.float32))
