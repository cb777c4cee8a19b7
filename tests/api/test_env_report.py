"""The report of `check_env`: observations, actions, ignored parts, and fixes for problems."""

import re
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import reverie
from reverie.envs import EnvConfig, EnvironmentCrashed, Suite, make_environment, spec_of
from reverie.envs.registered import register_maker

from ..envs.toy_world import ToyWorld


class World(gymnasium.Env[Any, Any]):
    """Observations depend on the seed. An episode has `length` steps and ends with `last_reward`."""

    observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (3,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)
    length, last_reward = 10, 1.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        return self._drawn(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        is_over = self._time >= self.length
        return self._drawn(), self.last_reward * is_over * self.np_random.random(), False, is_over, {}

    def _drawn(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()


def world(**members: Any) -> type[World]:
    return type("World", (World,), members)


def test_a_report_says_what_becomes_of_every_part() -> None:
    parts = {
        "camera": spaces.Box(0, 1, (3, 96, 64), np.float32),
        "map": spaces.Box(0, 255, (64, 64), np.uint8),
        "pose": spaces.Box(-1, 1, (2, 2), np.float64),
        "mode": spaces.Discrete(5),
    }
    action = spaces.Box(-2, 2, (3,), np.float32)
    report = reverie.check_env(world(observation_space=spaces.Dict(parts), action_space=action), steps=45)
    assert report.is_ready and report.spec is not None, report
    facts = dict(report.facts)
    assert facts["camera"] == "Box of (3, 96, 64) float32, seen as image, resized to (64, 64, 3) uint8"
    assert facts["map"] == "Box of (64, 64) uint8, seen as image (64, 64, 3) uint8"
    assert facts["pose"] == "Box of (2, 2) float64, seen as vector (4,) float32"
    assert facts["mode"] == "Discrete: one of 5, seen as one-hot (5,) float32"
    assert facts["action"] == "continuous: (3,) float32 from -2 to 2"
    assert facts["episodes"].startswith(
        "4 ended in 45 random steps: 0 terminated (no bootstrapping), 4 truncated"
    )
    assert facts["ignored"] == "info (except env.info and success) and render() (except for videos)"
    [notice] = report.notices
    assert notice.startswith("`camera` ") and notice.endswith("0 to 1 scaled to bytes 0 to 255")
    assert {key: spec.shape for key, spec in report.spec.observation.items()} == {
        "camera": (64, 64, 3), "map": (64, 64, 3), "pose": (4,), "mode": (5,)
    }  # fmt: skip
    assert str(report).startswith(
        "python/tests.api.test_env_report.World-v0: ready to train\n  camera       Box of"
    )


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "catch", "atari"])
def test_environments_that_are_known_to_work_are_ready_without_a_notice(name: str) -> None:
    report = reverie.check_env(name, steps=250)
    assert report.is_ready and (name == "atari" or not report.notices), report


def test_several_choices_at_once_are_ready_and_others_are_refused() -> None:
    report = reverie.check_env(world(action_space=spaces.MultiDiscrete([2, 3])), steps=5)
    assert report.is_ready and report.spec is not None and report.spec.action.parts == (2, 3)
    assert dict(report.facts)["action"] == "MultiDiscrete([2 3]): one choice per part, seen as one-hot blocks"
    report = reverie.check_env(world(action_space=spaces.Tuple([spaces.Discrete(2)])), steps=5)
    assert report.spec is None and "not ready" in str(report)
    assert any("only Discrete, MultiDiscrete, MultiBinary and Box" in e for e in report.errors)


def test_an_observation_of_another_kind_is_refused_and_the_repair_works() -> None:
    made = world(observation_space=spaces.MultiDiscrete([4, 5]))()
    [error] = reverie.check_env(made).errors
    assert error.endswith("Wrap it: gymnasium.wrappers.FlattenObservation(env).")
    assert reverie.check_env(gymnasium.wrappers.FlattenObservation(made)).is_ready


def test_an_environment_that_ignores_the_seed_trains_and_says_what_that_costs() -> None:
    class Unseeded(World):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return super().reset(options=options)

    report = reverie.check_env(Unseeded, steps=20)
    assert report.is_ready, report
    assert any("open at a checkpoint cannot be restored" in text for text in report.notices), report


def test_what_an_environment_draws_when_it_is_made_is_found_by_making_two() -> None:
    class Shifted(World):
        observation_space = spaces.Box(-2, 2, (3,), np.float32)

        def __init__(self) -> None:
            self.shift = np.random.default_rng().random(dtype=np.float32)

        def _drawn(self) -> Any:
            return self.np_random.random(3, np.float32) + self.shift

    report = reverie.check_env(Shifted, steps=20)
    assert report.is_ready, report
    assert [text for text in report.notices if "another instance starts differently" in text], report
    assert reverie.check_env(world(), steps=20).notices == []


def test_an_environment_that_ends_the_process_is_an_error_of_the_report() -> None:
    class Exits(World):
        def step(self, action: Any) -> Any:
            sys.exit(0)

        def close(self) -> None:
            sys.exit(0)

    report = reverie.check_env(Exits, steps=20)
    assert not report.is_ready and any("SystemExit: 0" in text for text in report.errors), report


def test_parts_within_parts_are_refused_with_a_repair_that_works() -> None:
    inner = spaces.Dict(camera=spaces.Box(0, 255, (64, 64, 3), np.uint8))
    [error] = reverie.check_env(world(observation_space=spaces.Dict(inner=inner))).errors
    assert error.endswith("Give every part a separate key in one Dict.")
    assert reverie.check_env(world(observation_space=inner)).is_ready


WIDE, WHOLE = spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(0, 9, (2,), np.int64)
STACK = spaces.Box(0, 255, (64, 64, 4), np.uint8)
BY_NUMBER: Any = {3: WHOLE}


@pytest.mark.parametrize(
    ("members", "kind", "message"),
    [
        ({"last_reward": 0.001}, "notices", "returns of random episodes differ by only 0.000"),
        ({"last_reward": 0.0}, "notices", "no reward in 60 random steps"),
        ({"length": 1000}, "notices", "no episode ended in 60 random steps; env.time_limit=<frames> truncat"),
        (
            {"last_reward": np.inf},
            "errors",
            "its reward is nan, which is not a single finite float32 number. Return finite",
        ),
        ({"action_space": WIDE}, "notices", "actions without two finite bounds receive"),
        ({"action_space": WHOLE}, "errors", "Declare one of them, and convert the action in step"),
        ({"observation_space": STACK}, "errors", "Give every image a separate key"),
        ({"observation_space": spaces.Dict(BY_NUMBER)}, "errors", "the key 3, which must be a string"),
        ({"reset": lambda self: (np.zeros(3), {})}, "errors", "Gymnasium's environment checker failed: "),
        ({"_drawn": lambda self: np.zeros(4)}, "errors", "random play failed after 0 steps: .*its space has"),
    ],
)
def test_problems_that_would_spoil_a_run_give_one_sentence(
    members: dict[str, Any], kind: str, message: str
) -> None:
    report = reverie.check_env(world(**members), steps=60)
    assert any(re.search(message, text) for text in getattr(report, kind)), report
    assert report.is_ready == (kind == "notices")


def test_an_environment_that_is_given_stays_open() -> None:
    made = gymnasium.make("CartPole-v1")
    assert reverie.check_env(made, steps=5).is_ready
    made.reset()
    made.step(0)


def test_a_world_with_every_kind_of_observation_is_ready() -> None:
    assert reverie.check_env(ToyWorld, steps=50).is_ready


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("CartPle-v1", "env.id=CartPle-v1 is not registered with Gymnasium. Did you mean `CartPole-v1`"),
        (lambda: 1 / 0, "cannot be created: ZeroDivisionError"),
        (3, "env is of type int. Pass an id, a class, or a function that creates one"),
    ],
)
def test_what_cannot_be_made_is_an_error(env: Any, message: str) -> None:
    with pytest.raises(reverie.UserError, match=message):
        reverie.check_env(env)


def test_steps_that_are_no_number_of_steps_are_refused() -> None:
    for steps in (-1, 0, "x"):
        with pytest.raises(
            reverie.UserError, match=rf"^steps must be a whole number of at least 1, got {steps!r}\.$"
        ):
            reverie.check_env("CartPole-v1", steps=steps)  # pyright: ignore[reportArgumentType]
    with pytest.raises(reverie.UserError, match=r"^seed must be in \[0, 2\*\*32\), got -1"):
        reverie.check_env("CartPole-v1", seed=-1)


def given(value: Any, dtype: Any = None) -> dict[str, Any]:
    """Return class members that make a world return tensors as observations."""
    drawn = World._drawn
    return {"_drawn": lambda self: value(torch.as_tensor(drawn(self), dtype=dtype))}


@pytest.mark.filterwarnings("ignore:.*WARN")
@pytest.mark.parametrize(
    ("members", "is_ready"),
    [
        (given(lambda tensor: tensor), True),
        (given(lambda tensor: tensor.requires_grad_() * 1), True),
        (given(lambda tensor: tensor, torch.bfloat16), True),
        (given(lambda tensor: tensor, torch.float64), True),
        (given(lambda tensor: tensor[None]), True),
        (given(lambda tensor: tensor * torch.inf), False),
        (given(lambda tensor: tensor.double() * 1e39), False),
        (given(lambda tensor: tensor[:2]), False),
        (given(lambda tensor: tensor.to("meta")), False),
        (given(lambda tensor: tensor) | {"observation_space": spaces.Discrete(4)}, True),
        (given(lambda tensor: tensor.reshape(1)) | {"observation_space": spaces.Discrete(4)}, True),
        (given(lambda tensor: tensor + 9) | {"observation_space": spaces.Discrete(4)}, False),
        ({"last_reward": torch.ones(1)}, True),
        ({"last_reward": torch.ones(1, 1, requires_grad=True)}, True),
        ({"last_reward": np.ones((1, 1))}, True),
        ({"last_reward": torch.ones(2)}, False),
        ({"last_reward": np.ones(2)}, False),
        ({"last_reward": 1e300}, False),
        ({"last_reward": torch.tensor(1e300, dtype=torch.float64)}, False),
    ],
)
def test_training_takes_what_the_report_says_is_ready(members: dict[str, Any], is_ready: bool) -> None:
    env = world(length=3, **members)
    report = reverie.check_env(env, steps=9)
    assert report.is_ready == is_ready, report
    config = EnvConfig(suite=Suite.gymnasium, id=register_maker(env), action_repeat=1, max_restarts=0)
    action = np.eye(2, dtype=np.float32)[:1]
    try:
        spec_of(config)
        environment = make_environment(config, 0)
        environment.reset()
        for _ in range(9):
            environment.step(action)
        trains = True
    except (reverie.UserError, EnvironmentCrashed):
        trains = False
    assert trains == is_ready


@pytest.mark.filterwarnings("ignore:.*WARN")
def test_an_environment_that_reuses_its_arrays_is_ready_and_gets_its_own_action_in_each_step() -> None:
    class Reuses(World):
        action_space = spaces.Box(-1, 1, (2,), np.float32)
        shown, info = np.zeros(3, np.float32), {"calls": 0}

        def step(self, action: Any) -> Any:
            action *= 0.5
            self.moved = action.sum()
            return (*super().step(action)[:2], np.bool_(False), np.bool_(self._time > 8), self.info)

        def reset(self, **others: Any) -> Any:
            self.moved = 0.0
            return super().reset(**others)[0], self.info

        def _drawn(self) -> Any:
            self.shown[:] = np.clip(self.moved, -1, 1)
            return self.shown

    report = reverie.check_env(Reuses, steps=20)
    assert report.is_ready and not any("share" in text or "determinis" in text for text in report.notices), (
        report
    )


def test_what_is_drawn_when_it_is_made_is_found_although_one_array_is_returned_again() -> None:
    class Shifted(World):
        shown = np.zeros(3, np.float32)

        def __init__(self) -> None:
            self.shift = np.random.default_rng().random(dtype=np.float32)

        def _drawn(self) -> Any:
            self.shown[:] = self.shift
            return self.shown

    report = reverie.check_env(Shifted, steps=20)
    assert any("another instance starts differently" in text for text in report.notices), report


def test_bytes_between_other_bounds_and_small_grids_are_pointed_out() -> None:
    parts = {
        "map": spaces.Box(0, 1, (64, 64), np.uint8),
        "codes": spaces.Box(0, 255, (7, 7, 3), np.uint8),
        "board": spaces.Box(0, 2, (3, 3), np.int8),
    }
    notices = reverie.check_env(world(observation_space=spaces.Dict(parts)), steps=5).notices
    assert any("`map` " in text and "0 to 1 scaled to bytes 0 to 255" in text for text in notices), notices
    for key in ("codes", "board"):
        assert any(f"`{key}` " in text and "one-hot encode them" in text for text in notices), notices


def test_the_time_limit_of_a_registered_class_is_kept() -> None:
    endless: Any = world(length=1000)
    gymnasium.register("tests/Endless-v0", entry_point=endless, max_episode_steps=20)
    report = reverie.check_env(endless, steps=60)
    assert dict(report.facts)["episodes"].startswith("3 ended in 60 random steps: 0 terminated"), report
