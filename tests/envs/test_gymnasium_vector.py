"""Gymnasium environments: literal streams, processes and images."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import reverie
from reverie.envs import (
    EnvConfig,
    EnvironmentCrashed,
    Suite,
    VectorEnvironment,
    Vectorization,
    make_environment,
)
from reverie.envs.registered import register_maker
from reverie.utils.errors import UserError

both = pytest.mark.parametrize("vectorization", list(Vectorization), ids=lambda kind: kind.name)
RIGHT = np.array([0, 1], np.float32)


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def make(env_id: str, run_seed: int = 0, *, render: bool = False, **options: Any) -> VectorEnvironment:
    config = EnvConfig(suite=Suite.gymnasium, id=env_id, **{"action_repeat": 1, **options})
    environment = make_environment(config, run_seed, render)
    assert isinstance(environment, VectorEnvironment)
    return environment


@both
def test_cartpole_pushed_to_one_side_pays_one_per_step_until_it_falls(vectorization: Vectorization) -> None:
    environment = make("CartPole-v1", vectorization=vectorization)
    arrivals = [environment.reset(), *[environment.step(RIGHT[None]) for _ in range(20)]]
    environment.close()
    length = next(step for step, arrival in enumerate(arrivals) if arrival.is_last[0])
    assert 8 <= length <= 11
    assert [float(arrival.reward[0]) for arrival in arrivals[: length + 2]] == [0.0] + [1.0] * length + [0.0]
    # In radians: it fell to the left.
    assert arrivals[length].observation["vector"][0, 2] < -0.2
    # CartPole starts within +-0.05.
    assert abs(arrivals[length + 1].observation["vector"]).max() <= 0.05


def test_an_action_repeated_pays_the_sum_and_stops_at_the_end() -> None:
    once, thrice = make("CartPole-v1"), make("CartPole-v1", action_repeat=3)
    singles = [once.reset(), *[once.step(RIGHT[None]) for _ in range(12)]]
    length = next(step for step, arrival in enumerate(singles) if arrival.is_last[0])
    thrice.reset()
    repeated = [thrice.step(RIGHT[None]) for _ in range(-(-length // 3))]
    assert sum(float(arrival.reward[0]) for arrival in repeated) == length
    assert [bool(arrival.is_last[0]) for arrival in repeated] == [False] * (len(repeated) - 1) + [True]
    np.testing.assert_array_equal(repeated[-1].observation["vector"], singles[length].observation["vector"])


def test_a_time_limit_counts_frames_and_truncates() -> None:
    environment = make("Pendulum-v1", time_limit=10, action_repeat=4)
    environment.reset()
    arrivals = [environment.step(np.zeros((1, 1), np.float32)) for _ in range(3)]
    assert [bool(arrival.is_last[0]) for arrival in arrivals] == [False, False, True]
    assert not arrivals[-1].is_terminal[0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_workers_do_not_load_torch() -> None:
    environment = make("CartPole-v1", vectorization=Vectorization["async"], num_envs=2)
    (first, second) = multiprocessing.active_children()
    maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in (first, second)]
    environment.close()
    assert all("numpy" in text and "libtorch" not in text for text in maps)


@both
def test_arguments_and_wrappers_reach_every_environment(vectorization: Vectorization) -> None:
    wrapper = "gymnasium.wrappers.TimeAwareObservation"
    wrappers = [{"name": wrapper, "kwargs": {"normalize_time": True}}, wrapper]
    options: dict[str, Any] = {"vectorization": vectorization, "time_limit": 5, "wrappers": wrappers}
    environment = make("CartPole-v1", kwargs={"sutton_barto_reward": True}, **options)
    environment.reset()
    arrival = environment.step(RIGHT[None])
    environment.close()
    # The textbook rewards only a fall.
    assert arrival.reward.tolist() == [0.0]
    assert arrival.observation["vector"].shape == (1, 6)
    # The innermost wrapper comes first.
    assert arrival.observation["vector"][0, 4:].tolist() == [pytest.approx(0.2), 1.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kwargs": {"suton": 1}},
            r"CartPole-v1 does not accept env\.kwargs\.suton; its arguments are sutton_barto_reward\.",
        ),
        (
            {"wrappers": ["gymnasium.wrappers.TimeLimit"]},
            "with env.wrappers=.*TimeLimit fails: TypeError",
        ),
        (
            {"wrappers": ["gymnasium.wrappers.NormalizeReward", "gymnasium.wrappers.TimeAwareObservation"]},
            "CartPole-v1 has the wrapper NormalizeReward. Checkpoints do not store its running statistics",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make("CartPole-v1", **options)


@both
def test_a_picture_that_fails_is_an_error_and_the_environment_continues(vectorization: Vectorization) -> None:
    environment = make("toy_world:ToyBlind-v0", vectorization=vectorization, render=True)
    # This is before the first episode.
    assert environment.render() is None
    environment.reset()
    with pytest.raises(
        UserError, match=r"render\(\) of toy_world:ToyBlind-v0 failed: it raised OSError: no screen"
    ):
        environment.render()
    environment.step(RIGHT[None])
    assert environment.render() is not None
    environment.close()


def test_without_a_screen_nothing_complains() -> None:
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER")
    script = (
        "from reverie.envs import EnvConfig, Suite, make_environment\n"
        "config = EnvConfig(suite=Suite.gymnasium, id='CartPole-v1', action_repeat=1)\n"
        "environment = make_environment(config, 0, render=True); environment.reset()\n"
        "print(environment.render().shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={name: text for name, text in os.environ.items() if name not in screens},
    )
    assert (done.stdout, done.stderr) == ("(400, 600, 3)\n", "")


def test_pictures_are_drawn_only_for_who_asked_for_them() -> None:
    drawn, plain = make("CartPole-v1", num_envs=2, render=True), make("CartPole-v1")
    drawn.reset()
    plain.reset()
    picture = drawn.render()
    assert picture is not None
    assert (picture.shape, picture.dtype) == ((400, 600, 3), np.uint8)
    assert plain.render() is None
    drawn.close()
    plain.close()


def test_spaces_that_the_model_cannot_take_are_refused_by_the_id() -> None:
    with pytest.raises(UserError, match=r"env\.id=toy_world:ToyPair-v0 has actions in Tuple\(Discrete"):
        make("toy_world:ToyPair-v0")


def test_a_missing_package_is_named_with_its_repair() -> None:
    with pytest.raises(UserError, match=r"env\.id=toy_world:ToyNeeds-v0 needs .* `pip install stuff`"):
        make("toy_world:ToyNeeds-v0")


def test_a_constructor_that_raises_is_told_with_its_place() -> None:
    message = (
        r"ToyStill-v0 cannot be created: FileNotFoundError: level.bin is missing \(toy_world.py, line \d+\)\."
    )
    with pytest.raises(UserError, match=message):
        make("toy_world:ToyStill-v0")


@both
def test_an_observation_of_the_wrong_shape_fails_its_environment_by_name(
    vectorization: Vectorization,
) -> None:
    environment = make("toy_world:ToyFlat-v0", vectorization=vectorization, max_restarts=0)
    message = r"environment 0 failed: its observation `pose` has the shape \(3,\), .* \(2, 2\)\. The limit"
    environment.reset()
    environment.step(RIGHT[None])
    with pytest.raises(EnvironmentCrashed, match=message):
        environment.step(RIGHT[None])


class Varying(gymnasium.Env[Any, Any]):
    """Has another observation space in each episode."""

    def __init__(self) -> None:
        self.action_space, self._size = spaces.Discrete(2), 4
        self.observation_space = spaces.Box(-1, 1, (4,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space = spaces.Box(-1, 1, (self._size,), np.float32)
        self._size = 7 - self._size
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, True, False, {}


def test_an_observation_space_that_changes_is_a_failure() -> None:
    environment = make(register_maker(Varying), max_restarts=0)
    environment.reset()
    environment.step(RIGHT[None])
    with pytest.raises(EnvironmentCrashed, match="its observation space has changed since it was created"):
        environment.step(RIGHT[None])
    [error] = [each for each in reverie.check_env(Varying).errors if "random play" in each]
    assert "its observation space has changed since it was created" in error
