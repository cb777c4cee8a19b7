"""Read the positions of the ball and the paddles in Atari Pong from the emulator's memory."""

from collections.abc import Iterator
from functools import cache

import numpy as np
from ale_py import Action
from numpy.typing import NDArray

from reverie.envs.atari import start_emulator
from reverie.envs.config import EnvConfig, Suite
from reverie.utils.errors import UserError

ADDRESSES = {"ball_x": 49, "ball_y": 54, "player_y": 51, "enemy_y": 50}
"""Memory addresses by name, from Anand et al. (2019), Unsupervised State Representation Learning in Atari.
`ball_y` is 0 while no ball is in play."""

BALL_OFFSET = (-48.5, -12.5)
"""Offset from (`ball_x`, `ball_y`) to the ball's center on the screen, (x, y) in pixels of 160 x 210."""

_SCREEN = (210, 160)
# Largest allowed color difference in 0..255. The environment rounds each channel.
_TOLERANCE = 1.0


def check_is_pong(env: EnvConfig, asked: str) -> None:
    """Raise `UserError`, beginning with `asked`, unless this is Pong without sticky actions (replayable)."""
    if (env.suite, env.game) != (Suite.atari, "pong"):
        raise UserError(f"{asked}: a probe reads the memory of Atari Pong, but this run plays {env.label}.")
    if env.sticky_actions:
        raise UserError(
            f"{asked}: a probe replays each game, but env.sticky_actions={env.sticky_actions:g} makes it "
            "random. Train with env.sticky_actions=0."
        )


def pong_memory(env: EnvConfig, frames: NDArray[np.uint8], actions: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Replay a recorded game and return the emulator's memory at each record.

    Native environments do not expose their memory. However, the emulator is deterministic, so the same
    actions after the same number of idle frames reproduce the game. Every frame is compared with the
    recording.

    Args:
        env: The environment's settings.
        frames: (T, H, W, 3) observed frames, beginning with the first record.
        actions: (T - 1,) indices of the actions between the frames.

    Returns:
        (T, 4) bytes in the order of `ADDRESSES`.

    Raises:
        ValueError: If no number of idle frames up to `env.noop_max` reproduces the frames.
    """
    for idle in range(env.noop_max + 1):
        memory = np.zeros((len(frames), len(ADDRESSES)), np.uint8)
        for index, (screen, values) in enumerate(_play(env, idle, actions)):
            if np.abs(_resize(screen, env.image_size) - frames[index]).max() > _TOLERANCE:
                break
            memory[index] = values
        else:
            return memory
    raise ValueError("the emulator cannot replay this game: its frames differ from the recording")


def _play(
    env: EnvConfig, idle: int, actions: NDArray[np.integer]
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Yield the screen (210, 160, 3) and the bytes at `ADDRESSES`, after the idle frames and each action."""
    emulator, choices = start_emulator(env)
    addresses = list(ADDRESSES.values())
    for _ in range(idle):
        emulator.act(Action.NOOP)
    yield emulator.getScreenRGB(), emulator.getRAM()[addresses]
    for action in actions:
        last = screen = emulator.getScreenRGB()
        for _ in range(env.action_repeat):
            emulator.act(choices[action])
            last, screen = screen, emulator.getScreenRGB()
        # Show the maximum of an action's last two frames, or its only frame.
        shown = np.maximum(last, screen) if env.action_repeat > 1 else screen
        yield shown, emulator.getRAM()[addresses]


def _resize(screen: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
    """Downscale the screen to (size, size, 3) by averaging equal areas."""
    rows, columns = (_area_weights(length, size) for length in _SCREEN)
    height, width = _SCREEN
    narrow = (rows @ screen.reshape(height, width * 3).astype(np.float32)).reshape(size, width, 3)
    return np.matmul(columns, narrow, dtype=np.float32)


@cache
def _area_weights(length: int, size: int) -> NDArray[np.float32]:
    """Return the weights (size, length) of `length` pixels in `size` areas. Each row sums to 1."""
    edges = np.arange(size + 1) * length / size
    pixel = np.arange(length)
    overlap = np.minimum(pixel + 1, edges[1:, None]) - np.maximum(pixel, edges[:-1, None])
    return (overlap.clip(min=0) * size / length).astype(np.float32)
