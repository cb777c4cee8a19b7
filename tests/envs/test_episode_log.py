"""The log of open episodes, and its memory."""

import numpy as np
import pytest

from reverie.envs import EnvConfig, Suite, VectorEnvironment, make_environment
from reverie.envs.episode_log import ActionLog, EpisodeLog
from reverie.utils.errors import UserError
from reverie.utils.seeding import episode_seed


def pendulum(time_limit: int) -> VectorEnvironment:
    config = EnvConfig(suite=Suite.gymnasium, id="Pendulum-v1", time_limit=time_limit, action_repeat=1)
    environment = make_environment(config, 0)
    assert isinstance(environment, VectorEnvironment)
    return environment


def test_a_log_gives_back_the_actions_it_was_given() -> None:
    actions = np.random.default_rng(0).normal(size=(700, 3)).astype(np.float32)
    log = ActionLog(3)
    for action in actions:
        log.append(action)
    np.testing.assert_array_equal(log.actions, actions)
    log.clear()
    assert log.actions.shape == (0, 3)


def test_a_log_holds_at_most_twice_what_its_actions_need() -> None:
    log, held = ActionLog(2), []
    for _ in range(2000):
        log.append(np.zeros(2, np.float32))
        held.append(log.nbytes)
        assert held[-1] <= ActionLog.most_bytes(2, len(held))
    needed = np.arange(1, 2001) * 2 * 4
    assert (np.array(held) >= needed).all()
    assert (np.array(held)[255:] <= 2 * needed[255:]).all()
    assert held[0] == 256 * 2 * 4


def test_the_memory_of_an_environment_grows_with_the_episode_and_shrinks_with_its_end() -> None:
    environment = pendulum(time_limit=600)
    environment.reset()
    at_first = environment.nbytes
    held = []
    while not environment.step(np.zeros((1, 1), np.float32)).is_last[0]:
        held.append(environment.nbytes)
    assert len(held) == 599
    assert held[:256] == [at_first] * 256
    assert held[-1] == at_first + (1024 - 256) * 4
    assert environment.nbytes == at_first
    assert max(held) == environment.planned_bytes
    environment.close()


def test_an_environment_without_a_time_limit_plans_nothing() -> None:
    environment = make_environment(EnvConfig(suite=Suite.catch, action_repeat=1), 0)
    assert environment.planned_bytes is None
    environment.close()


def test_pong_plans_for_its_longest_episode() -> None:
    environment = make_environment(EnvConfig(num_envs=2), 0)
    environment.close()
    # 27,000 steps of six float32, with reward and three flags.
    rows, record = 32768, 64 * 64 * 3 + 7
    assert environment.planned_bytes == 2 * (rows * 6 * 4 + record)


def test_seeds_follow_from_environment_and_episode_alone() -> None:
    log = EpisodeLog(5, 3, 1)
    assert log.begin([0, 2]) == {0: episode_seed(5, 0, 0), 2: episode_seed(5, 2, 0)}
    assert log.begin([2]) == {2: episode_seed(5, 2, 1)}
    assert log.begin([1]) == {1: episode_seed(5, 1, 0)}
    assert log.state_dict()["next_episode"] == [1, 1, 2]


def test_a_state_of_another_number_of_environments_is_refused() -> None:
    log = EpisodeLog(0, 2, 1)
    state = EpisodeLog(0, 3, 1).state_dict()
    with pytest.raises(UserError, match=r"contains 3 environments, but env\.num_envs=2\. Set env\.num"):
        log.load_state_dict(state)
    assert log.state_dict()["next_episode"] == [0, 0]
