"""The DeepMind Control Suite and Crafter: what they return, and what happens without them."""

import re
import subprocess
import sys
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reverie.envs import EnvConfig, Suite, make_environment, make_single, validate_env
from reverie.envs.config import Observations
from reverie.utils.errors import UserError
from reverie.utils.seeding import episode_seed

PIXELS = {"image": ((64, 64, 3), np.uint8)}
PROPRIO = {"orientations": ((14,), np.float32), "height": ((1,), np.float32), "velocity": ((9,), np.float32)}


def control(task: str = "walker_walk", **options: Any) -> EnvConfig:
    return EnvConfig(suite=Suite.dmc, task=task, **{"action_repeat": 2, **options})


def crafter(**options: Any) -> EnvConfig:
    return EnvConfig(suite=Suite.crafter, **{"action_repeat": 1, **options})


def random_actions(steps: int, size: int, is_discrete: bool) -> NDArray[np.float32]:
    """(steps, 1, size)"""
    rows = np.random.default_rng(0).uniform(-1, 1, (steps, 1, size))
    return (np.eye(size)[rows.argmax(-1)] if is_discrete else rows).astype(np.float32)


def test_the_packages_enable_no_warnings_of_other_modules() -> None:
    code = """import warnings
from reverie.envs import EnvConfig, Suite, validate_env
validate_env(EnvConfig(suite=Suite.dmc, task="walker_walk"))
common = [each for each in warnings.filters if each[1] is each[3] is None]
print([action for action, _, category, *_ in common if category is DeprecationWarning])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['ignore']\n", done.stdout


@pytest.mark.parametrize(
    ("observations", "expected"),
    [
        (Observations.proprio, PROPRIO),
        (Observations.pixels, PIXELS),
        (Observations.both, {**PIXELS, **PROPRIO}),
    ],
    ids=lambda value: value.name if isinstance(value, Observations) else "",
)
def test_the_control_suite_shows_what_was_chosen(
    observations: Observations, expected: dict[str, tuple[tuple[int, ...], type]]
) -> None:
    with closing(make_environment(control(observations=observations), 0)) as environment:
        spec, first = environment.spec, environment.reset()
    assert {key: (part.shape, part.dtype.type) for key, part in spec.observation.items()} == expected
    assert (spec.name, spec.action.text) == ("dmc/walker_walk", "6 numbers in [-1, 1]")
    # All tasks have 1,000 frames, here 2 for each action.
    assert spec.longest_episode == 500
    if observations is not Observations.proprio:
        assert first.observation["image"].std() > 10


def test_pixels_have_the_size_of_the_setting_and_are_drawn_once_for_each_action() -> None:
    env: Any = make_single(control(observations=Observations.pixels, image_size=80))
    with closing(env):
        assert env.observation_space.shape == (80, 80, 3)
        env.reset(seed=0)
        physics = env.unwrapped.physics
        drawn, draw = [], physics.render
        physics.render = lambda **options: drawn.append(options) or draw(**options)
        env.step(env.action_space.sample())
        assert drawn == [{"height": 80, "width": 80, "camera_id": 0}]


def test_records_are_those_of_the_suite_itself() -> None:
    from dm_control import suite

    actions = random_actions(505, 1, False)
    with closing(make_environment(control("cartpole_swingup"), run_seed=5)) as environment:
        arrivals = [environment.reset(), *map(environment.step, actions)]
    ends = [step for step, each in enumerate(arrivals) if each.is_last[0]]
    assert ends == [500]
    # The last frame is the time limit, and the value of its state counts.
    assert not any(each.is_terminal[0] for each in arrivals)
    random = np.random.RandomState(episode_seed(5, 0, 0))
    bare = suite.load("cartpole", "swingup", task_kwargs={"random": random})
    step = bare.reset()
    for action, arrival in zip([None, *actions[:500, 0]], arrivals[:501], strict=True):
        reward = 0.0
        for _ in range(0 if action is None else 2):
            step = bare.step(action)
            reward += step.reward
        assert arrival.reward[0] == np.float32(reward)
        for key, value in step.observation.items():
            np.testing.assert_array_equal(arrival.observation[key][0], np.float32(value).reshape(-1))
    assert step.last() and step.discount == 1


def test_pictures_outlive_other_environments() -> None:
    config = control(observations=Observations.pixels)
    still = np.zeros((1, 6), np.float32)
    with closing(make_environment(config, 1)) as alone:
        expected = [alone.reset(), alone.step(still), alone.step(still)]
    with closing(make_environment(config, 1)) as environment:
        found = [environment.reset()]
        with closing(make_environment(control("cheetah_run", observations=Observations.pixels), 2)) as other:
            other.reset()
            found.append(environment.step(still))
        found.append(environment.step(still))
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(left.observation["image"], right.observation["image"])


def test_crafter_ends_by_death_or_by_its_time_limit() -> None:
    with closing(make_environment(crafter(time_limit=40), 0)) as environment:
        spec = environment.spec
        noop = np.eye(17, dtype=np.float32)[:1]
        arrivals = [environment.reset(), *(environment.step(noop) for _ in range(40))]
    assert spec.observation_text == "image uint8 64x64x3" and spec.action.text == "one of 17"
    assert arrivals[-1].is_last[0] and not arrivals[-1].is_terminal[0]
    # Without food, an idle player dies after some hundred steps, and loses nine points of health before.
    with closing(make_environment(crafter(), 0)) as environment:
        assert environment.spec.longest_episode == 10_000
        total, arrival = 0.0, environment.reset()
        while not arrival.is_last[0]:
            arrival = environment.step(noop)
            total += float(arrival.reward[0])
    assert arrival.is_terminal[0]
    assert total < 0.2


def test_the_actions_of_crafter_have_names() -> None:
    with closing(make_single(crafter())) as env:
        names = env.unwrapped.get_action_meanings()  # pyright: ignore[reportAttributeAccessIssue]
    assert len(names) == 17 and names[:3] == ["noop", "move_left", "move_right"]


@pytest.mark.parametrize(
    ("config", "missing", "message"),
    [
        (control(), "dm_control", "env=dmc needs the package dm_control"),
        (control(), "shimmy", "env=dmc needs the package shimmy"),
        (crafter(), "crafter", "env=crafter needs the package crafter"),
    ],
)
def test_a_missing_package_is_one_sentence_with_the_command(
    config: EnvConfig, missing: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    extra = config.suite.value
    with pytest.raises(UserError) as error:
        validate_env(config)
    assert str(error.value).startswith(message)
    assert str(error.value).endswith(f": pip install -c constraints.txt -e '.[{extra}]'.")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (control("walker_wlk"), "env.task=walker_wlk is not one of the .* Did you mean `walker_walk`"),
        (control("walker"), "Names are domain_task, e.g. env.task=walker_walk"),
        (control(time_limit=1001), r"env\.time_limit must be at most 1000 \(got 1001\)"),
        (control(kwargs={"a": 1}), "env.kwargs and env.wrappers need env=gymnasium, got dmc"),
    ],
)
def test_an_unknown_task_is_refused(config: EnvConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        validate_env(config)


def test_a_machine_that_cannot_render_gets_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    from dm_control.mujoco.engine import Physics

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no OpenGL here")

    monkeypatch.setattr(Physics, "render", fails)
    with pytest.raises(UserError) as error:
        make_environment(control(observations=Observations.pixels), 0)
    assert re.fullmatch(
        r"env\.task=walker_walk cannot be rendered: no OpenGL here\. Install libegl1 or libosmesa6, .*",
        str(error.value),
    )
    # Positions and velocities need no picture.
    with closing(make_environment(control(), 0)) as environment:
        environment.reset()
