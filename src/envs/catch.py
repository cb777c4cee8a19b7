"""Catch: move a paddle under a falling ball. A pixel task that a CPU learns within minutes."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

CATCH_ID = "reverie/Catch-v0"

_ROWS, _COLUMNS, _PADDLE = 8, 8, 2
_CELL = 8  # pixels
_IMAGE_SIZE = 64
# Gray instead of black, because a decoder with a sigmoid output saturates on black and neglects the ball.
_BACKGROUND = (96, 96, 96)
_BALL_COLOUR = (255, 255, 255)
_PADDLE_COLOUR = (80, 160, 255)


class Catch(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """The ball starts in a random column of the top row and falls by one row per step, for seven steps.

    Actions are 0 (left), 1 (stay) and 2 (right). The reward is 1 if the ball lands on the paddle, -1 if it
    misses, and 0 before that. The paddle covers two of eight columns and starts in the middle, so that every
    ball can be caught. Standing still catches one ball in four. Observations are (64, 64, 3) uint8.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (_IMAGE_SIZE, _IMAGE_SIZE, 3), np.uint8)
        self.action_space = spaces.Discrete(3)
        self._row = self._column = self._paddle = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Place the ball at the top in a column drawn from the seed, and the paddle in the middle."""
        super().reset(seed=seed)
        self._row = 0
        self._column = int(self.np_random.integers(_COLUMNS))
        self._paddle = (_COLUMNS - _PADDLE) // 2
        return self._picture(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Move the paddle by at most one column, then let the ball fall by one row."""
        move = {0: -1, 1: 0, 2: 1}[int(action)]
        self._paddle = min(max(self._paddle + move, 0), _COLUMNS - _PADDLE)
        self._row += 1
        has_landed = self._row == _ROWS - 1
        is_caught = self._paddle <= self._column < self._paddle + _PADDLE
        reward = (1.0 if is_caught else -1.0) if has_landed else 0.0
        return self._picture(), reward, has_landed, False, {}

    def _picture(self) -> NDArray[np.uint8]:
        image = np.full((_IMAGE_SIZE, _IMAGE_SIZE, 3), _BACKGROUND, np.uint8)
        _paint(image, _ROWS - 1, self._paddle, _PADDLE, _PADDLE_COLOUR)
        _paint(image, self._row, self._column, 1, _BALL_COLOUR)
        return image


def _paint(image: NDArray[np.uint8], row: int, column: int, width: int, colour: tuple[int, int, int]) -> None:
    top, left = row * _CELL, column * _CELL
    image[top : top + _CELL, left : left + width * _CELL] = colour


gymnasium.register(CATCH_ID, entry_point="reverie.envs.catch:Catch")
