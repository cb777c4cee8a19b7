"""The positions in the emulator's memory agree with the environment's frames."""

from contextlib import closing

import numpy as np
import pytest

from benchmarks.pong_probe.memory import ADDRESSES, BALL_OFFSET, check_is_pong, pong_memory
from reverie.envs import EnvConfig, Suite, make_environment
from reverie.utils.errors import UserError

STEPS = 120
PONG = EnvConfig(num_envs=1)


@pytest.fixture(scope="module")
def game() -> tuple[np.ndarray, np.ndarray]:
    return random_play(PONG)


def random_play(env: EnvConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return frames and actions of random play."""
    chosen = np.random.default_rng(0).integers(0, 6, STEPS)
    with closing(make_environment(env, 3)) as environment:
        frames = [environment.reset().observation["image"][0].copy()]
        for action in chosen:
            step = environment.step(np.eye(6, dtype=np.float32)[[action]])
            frames.append(step.observation["image"][0].copy())
    return np.stack(frames), chosen


def test_the_ball_is_drawn_where_memory_says(game: tuple[np.ndarray, np.ndarray]) -> None:
    frames, actions = game
    memory = pong_memory(PONG, frames, actions)
    assert memory.shape == (STEPS + 1, len(ADDRESSES))
    ball = memory[:, 1] > 0
    assert 30 < ball.sum() < STEPS
    field = np.median(frames, axis=0)
    x, y = (memory[:, i].astype(float) + BALL_OFFSET[i] for i in (0, 1))
    # The area between paddles and walls.
    between = (x > 35) & (x < 125) & (y > 45) & (y < 185)
    for i in np.flatnonzero(ball & between):
        contrast = np.abs(frames[i] - field).max(-1)[11:58, 12:52]
        row, column = np.unravel_index(contrast.argmax(), contrast.shape)
        assert abs(row + 11 - y[i] * 64 / 210) < 2 and abs(column + 12 - x[i] * 64 / 160) < 2


@pytest.mark.parametrize("repeat", [1, 2])
def test_a_game_of_other_frame_skips_is_played_again(repeat: int) -> None:
    env = EnvConfig(num_envs=1, action_repeat=repeat)
    assert pong_memory(env, *random_play(env)).any()


def test_another_game_is_noticed(game: tuple[np.ndarray, np.ndarray]) -> None:
    frames, actions = game
    with pytest.raises(ValueError, match="cannot replay this game"):
        pong_memory(PONG, frames, (actions + 1) % 6)


def test_what_cannot_be_played_again_is_refused() -> None:
    check_is_pong(PONG, "run=x")
    with pytest.raises(UserError, match=r"^run=x: .* but this run plays atari/breakout"):
        check_is_pong(EnvConfig(game="breakout"), "run=x")
    with pytest.raises(UserError, match="this run plays catch"):
        check_is_pong(EnvConfig(suite=Suite.catch), "run=x")
    with pytest.raises(UserError, match=r"env\.sticky_actions=0\.25 makes it random"):
        check_is_pong(EnvConfig(sticky_actions=0.25), "run=x")
