"""Atari environments with different episode ends, and the meaning of the settings."""

import itertools

import ale_py
import numpy as np
import pytest
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from numpy.typing import NDArray

from reverie.envs import EnvConfig, make_environment
from reverie.utils.seeding import episode_seed
from reverie.utils.timestep import TimeStep


def breakout_actions(index: int, steps: int) -> NDArray[np.float32]:
    """Return random actions (steps, 4), with which all five balls are lost within about 200 steps."""
    return np.eye(4, dtype=np.float32)[np.random.default_rng(index).integers(4, size=steps)]


def play(config: EnvConfig, actions: NDArray[np.float32], run_seed: int = 0) -> list[TimeStep]:
    environment = make_environment(config, run_seed)
    arrivals = [environment.reset(), *[environment.step(action) for action in actions]]
    environment.close()
    return arrivals


def bare_emulator() -> AtariVectorEnv:
    return AtariVectorEnv(
        "breakout", 1, img_height=64, img_width=64, grayscale=False, stack_num=1,
        reward_clipping=False, use_fire_reset=False, noop_max=31,
    )  # fmt: skip


def test_an_episode_that_starts_leaves_the_other_emulators_alone() -> None:
    """Each episode matches a new emulator's with the same seed, while others end elsewhere."""
    steps = 320
    actions = np.stack([breakout_actions(index, steps) for index in range(2)], axis=1)
    arrivals = play(EnvConfig(game="breakout", num_envs=2), actions)
    is_first = np.array([arrival.is_first for arrival in arrivals])
    assert is_first.sum(axis=0).tolist() == [2, 2]
    assert is_first.argmin(axis=0).tolist() == [1, 1]
    # The second episodes start at different times.
    assert not is_first[1:].all(axis=1).any()
    for index in range(2):
        starts = np.flatnonzero(is_first[:, index])
        for episode, (start, stop) in enumerate(itertools.pairwise([*starts.tolist(), steps + 1])):
            emulator = bare_emulator()
            pixels, _ = emulator.reset(seed=np.array([episode_seed(0, index, episode)]))
            for arrival, action in zip(arrivals[start:stop], actions[start:, index], strict=False):
                np.testing.assert_array_equal(arrival.observation["image"][index], pixels[0, 0])
                pixels, *_ = emulator.step(np.array([action.argmax()]))


def test_game_over_is_terminal_and_rewards_are_whole_points() -> None:
    actions = breakout_actions(0, 320)[:, None]
    arrivals = play(EnvConfig(game="breakout"), actions)
    last = [arrival for arrival in arrivals if arrival.is_last[0]]
    assert [bool(arrival.is_terminal[0]) for arrival in last] == [True]
    rewards = {float(arrival.reward[0]) for arrival in arrivals}
    assert rewards == {0.0, 1.0}


def test_a_limit_of_frames_truncates_after_frames_over_repeat_actions() -> None:
    actions = np.eye(6, dtype=np.float32)[np.zeros((30, 1), int)]
    arrivals = play(EnvConfig(max_episode_frames=40, action_repeat=4), actions)
    assert [step for step, arrival in enumerate(arrivals) if arrival.is_last[0]] == [10, 21]
    assert [step for step, arrival in enumerate(arrivals) if arrival.is_first[0]] == [0, 11, 22]
    assert not any(arrival.is_terminal[0] for arrival in arrivals)


def test_pong_has_six_actions_and_eighteen_when_all_are_asked_for() -> None:
    minimal = make_environment(EnvConfig(), 0)
    full = make_environment(EnvConfig(full_action_space=True), 0)
    assert [minimal.spec.action.size, full.spec.action.size] == [6, 18]
    minimal.close()
    full.close()


def test_pong_loses_points_of_minus_one() -> None:
    """An agent that never moves loses the first point, with exactly one negative reward."""
    actions = np.eye(6, dtype=np.float32)[np.zeros((100, 1), int)]
    rewards = [float(arrival.reward[0]) for arrival in play(EnvConfig(), actions)]
    assert set(rewards) == {0.0, -1.0}
    assert rewards.count(-1.0) < 5


def area_weights(size: int, shrunk: int = 64) -> NDArray[np.float64]:
    """(shrunk, size): the share of each pixel in every one of the fewer, larger pixels."""
    edges = np.arange(shrunk + 1)[:, None] * size / shrunk
    pixels = np.arange(size)
    overlap = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
    return overlap.clip(0) * shrunk / size


def shrink(screen: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Average areas of a (height, width, 3) screen into (64, 64, 3)."""
    rows, columns = map(area_weights, screen.shape[:2])
    return np.stack([rows @ screen[..., channel] @ columns.T for channel in range(3)], axis=-1)


@pytest.mark.parametrize("game", ["breakout", "kangaroo"])
def test_a_game_follows_the_protocol_of_atari_100k(game: str) -> None:
    """One emulator, played as `embodied/envs/atari.py` of danijar/dreamerv3 does (e3f0224, env.atari100k).

    The minimal action set without sticky actions, four frames an action, the maximum of the last two in RGB,
    the sum of unclipped rewards, and an end at game over, whatever lives are lost before. Only the resize
    differs (docs/differences.md).
    """
    emulator = ale_py.ALEInterface()
    emulator.setInt("random_seed", episode_seed(0, 0, 0))
    emulator.setFloat("repeat_action_probability", 0.0)
    emulator.loadROM(str(roms.get_rom_path(game)))
    emulator.reset_game()
    actions = emulator.getMinimalActionSet()
    chosen = np.random.default_rng(0).integers(len(actions), size=600)
    first, *arrivals = play(
        EnvConfig(game=game, noop_max=0), np.eye(len(actions), dtype=np.float32)[chosen, None]
    )
    np.testing.assert_allclose(first.observation["image"][0], shrink(emulator.getScreenRGB()), atol=0.5)
    lives = emulator.lives()
    for step, (choice, arrival) in enumerate(zip(chosen, arrivals, strict=True)):
        reward, screens = 0, []
        while len(screens) < 4 and not emulator.game_over():
            reward += emulator.act(actions[choice])
            screens.append(emulator.getScreenRGB())
        is_over = emulator.game_over()
        assert (arrival.reward[0], arrival.is_last[0], arrival.is_terminal[0]) == (reward, is_over, is_over)
        if is_over:
            break
        if step % 10 == 0:
            seen = np.maximum(*screens[-2:])
            np.testing.assert_allclose(arrival.observation["image"][0], shrink(seen), atol=0.5)
    assert lives > 1 and emulator.game_over(), "lives were lost before the end"
