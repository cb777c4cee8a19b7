"""A small world with every kind of observation and with configurable faults, like a third-party package."""

import multiprocessing
import os
import signal
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

pose_drift = 0.0
"""Added to the pose in episodes with an odd seed. A test sets it for a world that cannot be repeated."""

limit_drift = 0
"""Added to the limit of these episodes."""

raise_now_at = -1
"""Like `raise_at`, for all instances."""


class ToyWorld(gymnasium.Env[dict[str, Any], Any]):
    """Counts to a limit of 3 to 7 given by the seed. The reward is count * action, and actions are 1 and 2.

    Environments with an odd seed raise at step `raise_at`, exit at `exit_at`, are killed at `kill_at` and
    hang at `hang_at`. Step 0 is the reset, and -1 means never.
    """

    def __init__(self, raise_at: int = -1, exit_at: int = -1, kill_at: int = -1, hang_at: int = -1) -> None:
        self.observation_space = spaces.Dict(
            camera=spaces.Box(0, 255, (48, 80), np.uint8),
            pose=spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
            mode=spaces.Discrete(3, start=5),
        )
        self.action_space = spaces.Discrete(2, start=1)
        self._raise_at, self._exit_at, self._kill_at, self._hang_at = raise_at, exit_at, kill_at, hang_at
        self._count = self._limit = 0
        self._is_faulty = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._is_faulty = seed is not None and seed % 2 == 1
        self._count, self._limit = 0, int(self.np_random.integers(3, 8)) + limit_drift * self._is_faulty
        self._fail_if_due()
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self._count += 1
        self._fail_if_due()
        return self._observation(), float(self._count * action), self._count >= self._limit, False, {}

    def _observation(self) -> dict[str, Any]:
        pose: NDArray[np.float64] = self.np_random.normal(size=(2, 2)) + pose_drift * self._is_faulty
        camera = np.full((48, 80), 10 * self._count, np.uint8)
        return {"camera": camera, "pose": pose, "mode": np.int64(5 + self._count % 3)}

    def _fail_if_due(self) -> None:
        if self._is_faulty and self._count in (self._raise_at, raise_now_at):
            raise ArithmeticError("100 % broken")
        if self._is_faulty and self._count == self._exit_at:
            sys.exit(3)
        if self._is_faulty and self._count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        while self._is_faulty and self._count == self._hang_at:
            time.sleep(1)


class ToyPair(ToyWorld):
    """Has actions that no policy supports."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])


class ToyBlind(ToyWorld):
    """Has no image, and renders only after its first step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012, as in gymnasium.Env

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode
        self.observation_space = spaces.Dict(pose=spaces.Box(-np.inf, np.inf, (2, 2), np.float64))

    def _observation(self) -> dict[str, Any]:
        return {"pose": super()._observation()["pose"]}

    def render(self) -> Any:
        if not self._count:
            raise OSError("no screen")
        return np.full((20, 300, 3), self._count, np.uint8)


class ToyNeeds(ToyWorld):
    """Needs a package that does not exist."""

    def __init__(self) -> None:
        raise gymnasium.error.DependencyNotInstalled("stuff is not installed, run `pip install stuff`")


class ToyStill(ToyWorld):
    """Cannot be created."""

    def __init__(self) -> None:
        raise FileNotFoundError("level.bin is missing")


class ToyFlat(ToyWorld):
    """Returns a pose that contradicts its space, from the second step on."""

    def _observation(self) -> dict[str, Any]:
        # Gymnasium checks only the first step.
        flat = {"pose": np.zeros(3)} if self._count > 1 else {}
        return super()._observation() | flat


class ToyUnborn(ToyWorld):
    """Can only be created in the main process."""

    def __init__(self) -> None:
        super().__init__()
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)


# Not a second time, if a test imports this file as one of its own modules.
if __name__ == "toy_world":
    gymnasium.register("Toy-v0", entry_point="toy_world:ToyWorld")
    gymnasium.register("ToyRaises-v0", entry_point="toy_world:ToyWorld", kwargs={"raise_at": 2})
    gymnasium.register("ToyExits-v0", entry_point="toy_world:ToyWorld", kwargs={"exit_at": 2})
    gymnasium.register("ToyDies-v0", entry_point="toy_world:ToyWorld", kwargs={"kill_at": 2})
    gymnasium.register("ToyHangs-v0", entry_point="toy_world:ToyWorld", kwargs={"hang_at": 2})
    gymnasium.register("ToyNeverStarts-v0", entry_point="toy_world:ToyWorld", kwargs={"raise_at": 0})
    gymnasium.register("ToyPair-v0", entry_point="toy_world:ToyPair")
    gymnasium.register("ToyBlind-v0", entry_point="toy_world:ToyBlind")
    gymnasium.register("ToyNeeds-v0", entry_point="toy_world:ToyNeeds")
    gymnasium.register("ToyStill-v0", entry_point="toy_world:ToyStill")
    gymnasium.register("ToyFlat-v0", entry_point="toy_world:ToyFlat")
    gymnasium.register("ToyUnborn-v0", entry_point="toy_world:ToyUnborn")
