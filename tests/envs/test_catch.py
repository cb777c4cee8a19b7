"""The rules of Catch."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from reverie.envs import CATCH_ID, Catch

LEFT, STAY, RIGHT = (np.int64(action) for action in range(3))


def column_of(image: np.ndarray, colour: tuple[int, int, int]) -> int:
    """Return the column of the leftmost cell in `colour`. Cells are 8 pixels wide."""
    return int(np.flatnonzero((image == colour).all(axis=-1).any(axis=0))[0] // 8)


def columns(image: np.ndarray) -> tuple[int, int]:
    """Return (ball, paddle)."""
    return column_of(image, (255, 255, 255)), column_of(image, (80, 160, 255))


@pytest.mark.filterwarnings("ignore:.*render.*:UserWarning")
def test_it_is_a_gymnasium_environment() -> None:
    check_env(gymnasium.make(CATCH_ID).unwrapped)


def test_an_episode_has_seven_steps_and_pays_only_at_its_end() -> None:
    env = Catch()
    env.reset(seed=0)
    results = [env.step(STAY) for _ in range(7)]
    assert [terminated for _, _, terminated, _, _ in results] == [False] * 6 + [True]
    assert [reward for _, reward, _, _, _ in results[:6]] == [0.0] * 6
    assert abs(results[6][1]) == 1.0
    assert not any(truncated for _, _, _, truncated, _ in results)


def test_every_ball_can_be_caught_by_who_sees_the_first_picture() -> None:
    env, balls = Catch(), set()
    for seed in range(60):
        image, _ = env.reset(seed=seed)
        ball, paddle = columns(image)
        balls.add(ball)
        moves = min(ball - paddle, 0) or max(ball - paddle - 1, 0)
        action = RIGHT if moves > 0 else LEFT
        actions = [action] * abs(moves) + [STAY] * (7 - abs(moves))
        assert [env.step(action)[1] for action in actions][-1] == 1.0
    assert balls == set(range(8))


def test_a_paddle_that_stands_still_catches_the_two_columns_above_it() -> None:
    env, caught = Catch(), set()
    for seed in range(60):
        ball, _ = columns(env.reset(seed=seed)[0])
        if [env.step(STAY)[1] for _ in range(7)][-1] == 1.0:
            caught.add(ball)
    assert caught == {3, 4}


@pytest.mark.parametrize(("action", "expected"), [(LEFT, [2, 1, 0, 0, 0]), (RIGHT, [4, 5, 6, 6, 6])])
def test_the_paddle_moves_one_column_and_stops_at_the_wall(action: np.int64, expected: list[int]) -> None:
    env = Catch()
    env.reset(seed=0)
    assert [columns(env.step(action)[0])[1] for _ in expected] == expected


def test_the_ball_falls_straight_down_by_one_cell_per_step() -> None:
    env = Catch()
    images = [env.reset(seed=1)[0], *[env.step(STAY)[0] for _ in range(6)]]
    tops = [int(np.flatnonzero((image == (255, 255, 255)).all(axis=-1).any(axis=1))[0]) for image in images]
    assert tops == [8 * row for row in range(7)]
    assert len({columns(image)[0] for image in images}) == 1
