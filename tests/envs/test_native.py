"""Vector environments of Gymnasium and EnvPool, record by record against single environments."""

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

import reverie
from examples.catch_tensors import CatchTensors
from reverie.envs import Catch, EnvConfig, EnvironmentCrashed, Suite, make_environment, make_single, spec_of
from reverie.envs.episodes import EpisodeTracker
from reverie.envs.native import Given, NativeVector, actions_of, info_rows
from reverie.envs.registered import register_maker
from reverie.envs.spaces import as_array, convert_action, convert_observation
from reverie.envs.workers import numbers_of
from reverie.utils.errors import UserError
from reverie.utils.seeding import named_seed
from reverie.utils.timestep import TimeStep

every_mode = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
Record = tuple[dict[str, NDArray], float, bool, bool, bool]
"""Observation, reward, is_first, is_last, is_terminal."""

SEED = named_seed(0, "vector", 0) & 0x7FFFFFFF


def made(maker: Callable[..., VectorEnv], num_envs: int, **options: Any) -> NativeVector:
    options = {"id": register_maker(maker), "action_repeat": 1, "num_envs": num_envs} | options
    environment = make_environment(EnvConfig(suite=Suite.vector, **options), 0)
    assert isinstance(environment, NativeVector)
    return environment


def action_for(env: int, record: int, size: int, is_discrete: bool) -> NDArray[np.float32]:
    """Return the action that follows a record of an environment, in every kind of environment."""
    drawn = np.random.default_rng([env, record]).uniform(-1, 1, size)
    return (np.eye(size)[drawn.argmax()] if is_discrete else drawn).astype(np.float32)


def streams(environment: NativeVector, calls: int) -> list[list[Record]]:
    """Play, and return the records of each environment."""
    size, is_discrete = environment.spec.action.size, environment.spec.action.is_discrete
    found: list[list[Record]] = [[] for _ in range(environment.spec.num_envs)]
    with closing(environment):
        step = environment.reset()
        for _ in range(calls):
            for env, record in rows_of(step):
                found[env].append(record)
            envs = range(len(found)) if step.envs is None else step.envs
            step = environment.step(
                np.stack([action_for(env, len(found[env]) - 1, size, is_discrete) for env in envs])
            )
    return found


def rows_of(step: TimeStep) -> Iterator[tuple[int, Record]]:
    for row, env in enumerate(range(len(step.reward)) if step.envs is None else step.envs.tolist()):
        observation = {key: as_array(values)[row].copy() for key, values in step.observation.items()}
        is_first, is_last, is_terminal = (
            bool(each[row]) for each in (step.is_first, step.is_last, step.is_terminal)
        )
        yield env, (observation, float(step.reward[row]), is_first, is_last, is_terminal)


def single_stream(env: gymnasium.Env, index: int, seed: int, count: int) -> list[Record]:
    """Return the first records of one environment. Its episodes continue one random stream."""
    space: Any = env.action_space
    size, is_discrete = (space.n, True) if isinstance(space, spaces.Discrete) else (space.shape[0], False)
    see = partial(convert_observation, env.observation_space, image_size=64)
    records: list[Record] = [(see(env.reset(seed=seed)[0]), 0.0, True, False, False)]
    while len(records) < count:
        action = action_for(index, len(records) - 1, size, is_discrete)
        if records[-1][3]:
            records.append((see(env.reset()[0]), 0.0, True, False, False))
            continue
        observation, reward, terminated, truncated, _ = env.step(convert_action(space, action))
        ended = bool(terminated or truncated)
        records.append((see(observation), float(np.float32(reward)), False, ended, bool(terminated)))
    return records


def assert_same(found: list[Record], expected: list[Record]) -> None:
    for (seen, *scalars), (expected_seen, *expected_scalars) in zip(found, expected, strict=True):
        assert scalars == expected_scalars
        assert seen.keys() == expected_seen.keys()
        for key, value in expected_seen.items():
            assert seen[key].dtype == value.dtype
            np.testing.assert_array_equal(seen[key], value)


SINGLES: dict[str, Callable[[], gymnasium.Env]] = {
    "cartpole": partial(gymnasium.make, "CartPole-v1", max_episode_steps=15),
    "pendulum": partial(gymnasium.make, "Pendulum-v1", max_episode_steps=7),
    "toy": partial(gymnasium.make, "toy_world:Toy-v0"),
}


@every_mode
@pytest.mark.parametrize("name", SINGLES)
def test_every_autoreset_mode_gives_the_records_of_single_environments(
    name: str, mode: AutoresetMode
) -> None:
    def maker(num_envs: int) -> VectorEnv:
        return SyncVectorEnv([SINGLES[name]] * num_envs, autoreset_mode=mode)

    ends = set[tuple[bool, bool]]()
    for index, found in enumerate(streams(made(maker, 3), calls=60)):
        # The final observation and the first one of the next episode are separate records.
        assert len(found) >= 45
        assert_same(found, single_stream(SINGLES[name](), index, SEED + index, len(found)))
        ends |= {(is_last, is_terminal) for _, _, _, is_last, is_terminal in found}
    # CartPole falls and reaches its time limit, Pendulum only the limit, and the toy only ends by itself.
    expected = {"cartpole": {True, False}, "pendulum": {False}, "toy": {True}}[name]
    assert {is_terminal for is_last, is_terminal in ends if is_last} == expected


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_final_records_come_alone_before_the_first_records_of_the_next_episodes(mode: str) -> None:
    def maker(num_envs: int) -> VectorEnv:
        return SyncVectorEnv([SINGLES["cartpole"]] * num_envs, autoreset_mode=mode)

    environment, tracker = made(maker, 3), EpisodeTracker(3)
    step, has_ended = environment.reset(), False
    for _ in range(40):
        tracker.add(step, step.envs)
        ended = np.flatnonzero(step.is_last) if step.envs is None else step.envs
        still_open = [episode.env for episode in tracker.open_episodes(step)]
        assert still_open == np.delete(np.arange(3), ended).tolist()
        before, step = step, environment.step(np.eye(2, dtype=np.float32)[np.zeros(len(step.reward), int)])
        if step.envs is not None:
            assert step.is_last.all() and not step.is_first.any()
            has_ended = True
        elif before.envs is not None:
            assert np.flatnonzero(step.is_first).tolist() == before.envs.tolist()
            assert not step.reward[before.envs].any()
        else:
            assert not step.is_first.any() and not step.is_last.any()
    assert has_ended
    environment.close()


@pytest.mark.filterwarnings("ignore:EnvPool seeds are fixed", "ignore:.*precision lowered")
def test_envpool_gives_the_records_of_a_pool_with_one_environment() -> None:
    envpool: Any = pytest.importorskip("envpool")

    def maker(num_envs: int, seed: int) -> VectorEnv:
        return envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, seed=seed, max_episode_steps=20)

    together, ends = streams(made(maker, 3, kwargs={"seed": 5}), calls=80), set[bool]()
    for index, found in enumerate(together):
        pool, expected = maker(1, 5 + index), list[Record]()
        observation, _ = pool.reset()
        expected.append(({"vector": observation[0]}, 0.0, True, False, False))
        while len(expected) < len(found):
            action = np.array([action_for(index, len(expected) - 1, 2, is_discrete=True).argmax()])
            observation, reward, terminated, truncated, _ = pool.step(action)
            is_first, terminal = expected[-1][3], bool(terminated[0])
            ended = terminal or bool(truncated[0])
            expected.append(({"vector": observation[0].copy()}, float(reward[0]), is_first, ended, terminal))
        assert_same(found, expected)
        ends |= {is_terminal for _, _, _, is_last, is_terminal in found if is_last}
    assert ends == {True, False}


def test_a_vector_entry_point_of_gymnasium_gives_the_records_of_single_environments() -> None:
    config = EnvConfig(
        suite=Suite.vector, id="CartPole-v1", action_repeat=1, num_envs=4, time_limit=15,
        kwargs={"sutton_barto_reward": True},
    )  # fmt: skip
    environment = make_environment(config, 0)
    assert isinstance(environment, NativeVector)
    assert environment.spec.longest_episode == 15
    for index, found in enumerate(streams(environment, calls=50)):
        single: Any = gymnasium.make("CartPole-v1", max_episode_steps=15, sutton_barto_reward=True)
        single.reset(seed=0)
        assert sum(record[2] for record in found) > 2
        for number, (seen, reward, is_first, is_last, is_terminal) in enumerate(found):
            if is_first:
                single.reset()
                single.unwrapped.state = np.float64(seen["vector"])
                continue
            action = action_for(index, number - 1, 2, is_discrete=True).argmax()
            observation, paid, terminated, truncated, _ = single.step(action)
            # The batch computes in another order, and starts with more digits than its observation has.
            np.testing.assert_allclose(seen["vector"], observation, atol=1e-5)
            assert (reward, is_terminal, is_last) == (paid, terminated, terminated or truncated)


def column_of(picture: NDArray[np.uint8]) -> int:
    """Return the column of the white ball in the top row, in pixels."""
    return int((picture[0] == 255).all(-1).argmax())


@every_mode
def test_catch_on_tensors_shows_the_pictures_of_catch(mode: AutoresetMode) -> None:
    single = Catch()
    seeds = {column_of(single.reset(seed=seed)[0]): seed for seed in range(64)}
    for index, found in enumerate(streams(made(partial(CatchTensors, autoreset_mode=mode.value), 5), 30)):
        assert sum(record[2] for record in found) > 2
        for number, (seen, reward, is_first, is_last, is_terminal) in enumerate(found):
            picture, paid, ended = seen["image"], 0.0, False
            if is_first:
                expected, _ = single.reset(seed=seeds[column_of(picture)])
            else:
                action = np.int64(action_for(index, number - 1, 3, is_discrete=True).argmax())
                expected, paid, ended, _, _ = single.step(action)
            np.testing.assert_array_equal(picture, expected)
            assert (reward, is_last, is_terminal) == (paid, ended, ended)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([2, 3, 4], start=[0, 5, -2]),
        spaces.MultiBinary((2, 2)),
        spaces.Box(np.array([[-2, 0]], np.float32), np.array([[1, 3]], np.float32)),
        spaces.Box(np.array([0.0, -np.inf]), np.array([np.inf, 0.5]), dtype=np.float64),
    ],
    ids=str,
)
def test_a_batch_of_actions_is_converted_as_each_single_one(space: spaces.Space) -> None:
    parts = {"Discrete": 4, "MultiDiscrete": 9, "MultiBinary": 8, "Box": 2}[type(space).__name__]
    actions = np.random.default_rng(0).uniform(-1.5, 1.5, (50, parts)).astype(np.float32)
    found = actions_of(space, torch.device("cpu"))(torch.from_numpy(actions)).numpy()
    for action, row in zip(actions, found, strict=True):
        expected = np.asarray(convert_action(space, action))
        assert (row.shape, row.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(row, expected)


@every_mode
def test_a_restored_environment_with_a_state_continues_bit_for_bit(mode: AutoresetMode) -> None:
    maker = partial(CatchTensors, autoreset_mode=mode.value)

    def follow(environment: NativeVector, step: TimeStep, calls: int) -> list[tuple[int, Record]]:
        drawn = torch.Generator().manual_seed(0)
        found = list(rows_of(step))
        for _ in range(calls):
            choice = torch.randint(3, (environment.spec.num_envs,), generator=drawn)
            step = environment.step(torch.eye(3)[choice[: len(step.reward)]])
            found += rows_of(step)
        return found

    for calls in range(18):
        saving, restoring = made(maker, 3), made(maker, 3)
        step = saving.reset()
        for _ in range(calls):
            step = saving.step(torch.eye(3)[torch.ones(len(step.reward), dtype=torch.long)])
        state = saving.state_dict()
        expected = follow(saving, step, 20)
        step, warnings = restoring.restore(state)
        found = follow(restoring, step, 20)
        assert warnings == []
        assert [env for env, _ in found] == [env for env, _ in expected]
        assert_same([record for _, record in found], [record for _, record in expected])
        assert restoring.state_dict()["starts"] == saving.state_dict()["starts"] == 1


def test_without_a_state_new_episodes_begin_after_a_restart() -> None:
    saving, restoring = (made(lambda num_envs: SyncVectorEnv([SINGLES["toy"]] * num_envs), 2) for _ in "ab")
    assert any("resumed runs start new episodes" in text for text in saving.spec.notices)
    first = saving.reset()
    saving.step(np.eye(2, dtype=np.float32))
    step, [warning] = restoring.restore(saving.state_dict())
    assert warning.endswith(
        "2 open episodes could not be restored, because the environment has no `state_dict` and "
        "`load_state_dict` methods. New episodes were started."
    )
    assert step.is_first.all()
    # They are not the first episodes again.
    assert not np.array_equal(step.observation["pose"], first.observation["pose"])


class Broken(CatchTensors):
    """Catch with a fault after some steps."""

    def __init__(self, num_envs: int, fault: str) -> None:
        super().__init__(num_envs)
        self.fault, self.steps, self.closings = fault, 0, 0

    def step(self, actions: Tensor) -> Any:
        self.steps += 1
        pictures, reward, ended, truncated, info = super().step(actions)
        if self.steps == 3 and self.fault == "exception":
            raise ArithmeticError("lost")
        if self.steps == 3 and self.fault == "reward":
            reward[1] = torch.nan
        if self.steps == 3 and self.fault == "rows":
            pictures = pictures[1:]
        if self.fault == "final":
            info.pop("final_obs")
        return pictures, reward, ended, truncated, info

    def close(self, **kwargs: Any) -> None:
        self.closings += 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("exception", r"failed: step\(\) raised ArithmeticError: lost\.\nTraceback"),
        ("reward", "failed: a reward or an observation is not a finite float32 number"),
        ("rows", "failed: its observation `image` has 1 rows for 2 environments"),
        ("final", "failed: it resets in the same step, but `info` has no final_obs"),
    ],
)
def test_a_failure_closes_the_environment_and_keeps_a_state_for_new_episodes(
    fault: str, message: str
) -> None:
    broken = Broken(2, fault)
    environment, action = made(lambda num_envs: broken, 2), torch.eye(3)[[0, 1]]
    environment.reset()
    with pytest.raises(EnvironmentCrashed, match=message):
        for _ in range(8):
            environment.step(action)
    environment.close()
    assert broken.closings == 1
    assert environment.state_dict()["native"] is None
    step, [warning] = made(lambda num_envs: CatchTensors(num_envs), 2).restore(environment.state_dict())
    assert step.is_first.all()
    assert "because it failed before the checkpoint" in warning


class Differentiable(CatchTensors):
    """Catch in which rewards and flags depend on a parameter."""

    def step(self, actions: Tensor) -> Any:
        pictures, reward, ended, truncated, info = super().step(actions)
        parameter = torch.ones((), requires_grad=True)
        return pictures, reward * parameter, ended * parameter, truncated, info


def test_tensors_may_require_gradients() -> None:
    plain, differentiable = made(CatchTensors, 2), made(Differentiable, 2)
    expected, found = plain.reset(), differentiable.reset()
    for _ in range(20):
        action = np.eye(3, dtype=np.float32)[np.arange(len(expected.reward)) % 3]
        expected, found = plain.step(action), differentiable.step(action)
        for name in ("reward", "is_first", "is_last", "is_terminal"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert isinstance(found.reward, np.ndarray)


def test_an_action_that_is_not_finite_is_refused() -> None:
    for environment in (made(CatchTensors, 2), made(lambda num_envs: SyncVectorEnv([SINGLES["toy"]] * 2), 2)):
        environment.reset()
        action = np.full((2, environment.spec.action.size), np.nan, np.float32)
        with pytest.raises(UserError, match="the policy chose an action that is not finite"):
            environment.step(action)


class Undeclared(CatchTensors):
    """Does not declare when it resets."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.metadata = {}


class Unsaved(CatchTensors):
    """Has a state that no file can contain."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)

    def state_dict(self) -> Any:
        return {"generator": self.generator}


class Columns(SyncVectorEnv):
    """Returns rewards of shape (N, 1)."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([SINGLES["cartpole"]] * num_envs)

    def step(self, actions: NDArray) -> Any:
        observation, reward, *others = super().step(actions)
        return observation, reward[:, None], *others


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (Columns, r"it returned a reward or flag of shape \(2, 1\) instead of \(2,\)"),
        (Undeclared, r"does not declare when it resets: metadata\['autoreset_mode'\] is None\. Set it to"),
        (
            lambda num_envs: CatchTensors(4),
            "made a CatchTensors with num_envs=4, not a gymnasium.vector.VectorEnv",
        ),
        (
            lambda num_envs: Catch(),
            "made a Catch with num_envs=1, not a gymnasium.vector.VectorEnv with num_envs=2",
        ),
        (lambda num_envs: 1 / 0, "cannot be created: ZeroDivisionError"),
        (Unsaved, "`native/generator` is a Generator, which checkpoints do not support"),
        (Given(CatchTensors(3)), "has 3 environments, but 2 are needed. Pass a function"),
    ],
)
def test_vector_environments_that_do_not_fit_are_refused(maker: Any, message: str) -> None:
    config = EnvConfig(suite=Suite.vector, id=register_maker(maker), action_repeat=1, num_envs=2)
    with pytest.raises(UserError, match=message):
        spec_of(config)


class Meddling(CatchTensors):
    """Changes settings of the process when it is created."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        torch.set_default_dtype(torch.float64)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def test_settings_that_change_when_it_is_created_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    for make in (partial(made, Meddling, 2), partial(make_single, meddling_config())):
        make().close()
        assert torch.get_default_dtype() is torch.float32
        assert signal.getsignal(signal.SIGTERM) is before


def meddling_config() -> EnvConfig:
    return EnvConfig(suite=Suite.vector, id=register_maker(Meddling), action_repeat=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "Acrobot-v1"}, "env.id=Acrobot-v1 has no vector entry point. Set env=gymnasium, or name a"),
        ({"id": "CartPole-v2"}, "env.id=CartPole-v2 is not registered with Gymnasium"),
        ({"action_repeat": 2}, "env.action_repeat=2 applies to single environments, but env=vector"),
        ({"wrappers": ["gymnasium.wrappers.TimeLimit"]}, "env.wrappers applies to single environments"),
        ({"kwargs": {"suton": 1}}, "does not accept env.kwargs.suton"),
    ],
)
def test_settings_that_do_not_fit_a_batch_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec_of(EnvConfig(suite=Suite.vector, **{"action_repeat": 1, "num_envs": 2, **options}))


def test_an_environment_that_a_caller_passed_stays_open() -> None:
    given = Broken(2, "none")
    environment = made(Given(given), 2)
    environment.reset()
    environment.close()
    assert given.closings == 0


@every_mode
def test_one_environment_of_a_batch_has_the_interface_of_a_single_one(mode: AutoresetMode) -> None:
    maker = partial(CatchTensors, autoreset_mode=mode.value)
    config = EnvConfig(suite=Suite.vector, id=register_maker(maker), action_repeat=1, num_envs=1024)
    env = make_single(config)
    for _ in range(2):
        (picture, _), reward = env.reset(seed=3), 0.0
        for step in range(7):
            assert env.observation_space.contains(picture)
            # The ball falls by one row of eight pixels per step.
            assert int((picture == 255).all(-1).any(1).argmax()) == 8 * step
            picture, reward, terminated, truncated, _ = env.step(1)
            assert (terminated, truncated) == (step == 6, False)
        assert int((picture == 255).all(-1).any(1).argmax()) == 56
        assert abs(float(reward)) == 1


def test_a_batch_that_seeds_itself_is_ready_without_notices() -> None:
    report = reverie.check_env(CatchTensors, steps=20)
    assert report.is_ready and not report.notices, str(report)


class Reporter(gymnasium.Env):
    """Reports numbers in every info. Only those of an episode's last step count."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {"success": 7.0, "nested": {"distance": 7.0}}

    def step(self, action: Any) -> Any:
        self.time += 1
        info = {"energy": float(self.time), "nested": {"distance": self.time + 0.5}, "name": "a text"}
        # Only the shorter episodes report a success.
        info |= {"success": self.length == 3} if self.length < 5 else {}
        return np.zeros(1, np.float32), 1.0, self.time == self.length, False, info


def test_masks_at_every_level_of_info_hide_numbers() -> None:
    ended, both = np.array([0, 1]), np.array([1.0, 5.0])
    first = np.array([True, False])
    cases: list[dict[str, Any]] = [
        {"s": both, "_s": first},
        {"final_info": {"s": both}, "_final_info": first},
        {"s": np.array([1.0, np.nan])},
    ]
    for info in cases:
        assert np.array_equal(info_rows(info, ["s"], ended)["s"], [1, np.nan], equal_nan=True)
    nested = {"d": {"s": both}, "_d": first, "text": np.array(["a", "b"]), "whole": 3.0}
    found = info_rows(nested, ["d/s", "text", "whole", "text/s", "missing"], ended)
    assert np.array_equal(found.pop("d/s"), [1, np.nan], equal_nan=True)
    assert all(np.isnan(row).all() for row in found.values())


def test_a_step_that_ends_no_episode_does_not_read_its_info() -> None:
    # The values of a meta tensor cannot be read.
    unread = {"success": torch.ones(2, device="meta")}
    with pytest.raises(NotImplementedError):
        info_rows(unread, ["success"], np.array([0]))
    assert info_rows(unread, ["success"], np.zeros(0, np.int64))["success"].shape == (0,)


class CatchWithInfo(CatchTensors):
    """Reports the number of caught balls as a tensor."""

    def step(self, actions: Tensor) -> Any:
        pictures, reward, ended, truncated, info = super().step(actions)
        return pictures, reward, ended, truncated, info | {"success": (reward > 0).float()}


@every_mode
def test_numbers_of_the_last_info_of_an_episode_belong_to_its_final_record(mode: AutoresetMode) -> None:
    makers = [partial(Reporter, length) for length in (3, 4, 5)]
    env = made(
        lambda num_envs: SyncVectorEnv(makers, autoreset_mode=mode), 3, info=["energy", "nested/distance"]
    )
    found: list[tuple[int, dict[str, float]]] = []
    with closing(env):
        step = env.reset()
        for _ in range(40):
            for row, index in enumerate(np.arange(3) if step.envs is None else step.envs):
                numbers = {name: float(values[row]) for name, values in step.info.items()}
                if step.is_last[row]:
                    found.append((int(index), numbers))
                else:
                    assert all(map(np.isnan, numbers.values()))
            step = env.step(np.eye(2, dtype=np.float32)[[0, 1, 0]])
    assert {index for index, _ in found} == {0, 1, 2}
    for index, numbers in found:
        energy, success = index + 3.0, (1.0, 0.0, np.nan)[index]
        expected = {
            "energy": energy,
            "nested/distance": energy + 0.5,
            "success": success,
            "is_success": np.nan,
        }
        assert {name: numbers[name] for name in expected} == pytest.approx(expected, nan_ok=True)


@every_mode
def test_tensors_in_info_are_numbers_of_episodes(mode: AutoresetMode) -> None:
    maker = partial(CatchWithInfo, autoreset_mode=mode.value)
    with closing(made(maker, 64)) as env:
        step = env.reset()
        while not step.is_last.any():
            step = env.step(np.eye(3, dtype=np.float32)[np.full(64, 1)])
    assert np.array_equal(step.info["success"], step.reward > 0) and 0 < step.info["success"].mean() < 1
    single = make_single(EnvConfig(suite=Suite.vector, id=register_maker(maker), action_repeat=1))
    single.reset(seed=0)
    *_, reward, _, _, info = [single.step(1) for _ in range(7)][-1]
    assert numbers_of(info, ["success", "is_success"]) == {"success": float(float(reward) > 0)}
