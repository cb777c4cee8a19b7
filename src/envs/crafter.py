"""Crafter as a Gymnasium environment whose episodes are determined by their seed and actions."""

from importlib import import_module
from typing import Any

import crafter
import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

# The module reads these names from a file, so type checkers cannot see them.
_ACTIONS: list[str] = vars(import_module("crafter.constants"))["actions"]


class _Repeatable(crafter.Env):
    """Crafter with creatures ordered by position instead of by memory address.

    Crafter picks the creature to remove from an unordered set, so episodes would differ in another process.
    """

    def _balance_chunk(self, chunk: Any, objs: Any) -> None:
        super()._balance_chunk(chunk, sorted(objs, key=lambda each: tuple(each.pos)))


class Crafter(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Collect resources and survive, for at most 10,000 steps. Observations are (size, size, 3) uint8.

    The reward is 1 when one of the 22 achievements is first unlocked in an episode, plus 0.1 for each point
    of health gained and -0.1 for each point lost. Death is terminal.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = spaces.Discrete(len(_ACTIONS))

    def get_action_meanings(self) -> list[str]:
        """Return the names of the actions, e.g. `move_left`."""
        return list(_ACTIONS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode in the world that the seed determines."""
        super().reset(seed=seed)
        # Crafter derives the worlds of all episodes from its first seed, so each episode uses a new instance.
        drawn = int(self.np_random.integers(2**31)) if seed is None else seed
        self._env = _Repeatable(size=(self._size, self._size), seed=drawn)
        return self._env.reset(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Act for one step. An episode's last observation is terminal unless its time limit was reached."""
        image, reward, is_over, info = self._env.step(int(action))
        is_dead = info["discount"] == 0
        # Gymnasium warns about a shared object, such as other values in `info`.
        shown = {"achievements": info["achievements"]}
        return image, float(reward), is_dead, bool(is_over) and not is_dead, shown
