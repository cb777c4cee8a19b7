"""A run reports how many steps fit its compressed replay."""

from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ..runs.helpers import CATCH, SMALL, metrics_of, start

NOISE = "Noise-v0"
CODED = (
    "buffer.compressed=true",
    "training.train_ratio=0.1",
    "training.log_interval=20",
    "training.video_interval=0",
    "logger.tensorboard=false",
)


class Noise(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Incompressible frames, with 10 steps per episode."""

    observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[NDArray[np.uint8], dict]:
        super().reset(seed=seed)
        self._count = 0
        return self._frame(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict]:
        self._count += 1
        return self._frame(), 0.0, self._count == 10, False, {}

    def _frame(self) -> NDArray[np.uint8]:
        return self.np_random.integers(256, size=(64, 64, 3), dtype=np.uint8)


def test_a_run_logs_how_many_steps_its_memory_holds(tmp_path: Path) -> None:
    run = start(tmp_path / "run", *CATCH, *CODED)
    lines = [line for line in metrics_of(run) if "buffer/replay/holds_steps" in line]
    assert lines and all(line["buffer/replay/record_bytes"] > 0 for line in lines)
    # Catch compresses well, so the capacity is reached first.
    assert lines[-1]["buffer/replay/holds_steps"] > 1000


def test_a_run_whose_frames_do_not_compress_warns_that_old_episodes_go(tmp_path: Path) -> None:
    gymnasium.register(NOISE, lambda **_: Noise())
    try:
        run = start(
            tmp_path / "run",
            "experiment=dreamer",
            "env=gymnasium",
            f"env.id={NOISE}",
            "env.num_envs=1",
            *SMALL,
            *CODED,
            "buffer.memory_budget_gib=0.003",
        )
    finally:
        del gymnasium.registry[NOISE]
    [full] = [line for line in (run / "train.log").read_text().splitlines() if "is full with" in line]
    assert "WARNING replay: buffer.memory_budget_gib=0.003 is full with" in full
    *_, last = (line for line in metrics_of(run) if "buffer/replay/holds_steps" in line)
    assert last["buffer/replay/holds_steps"] < 1000
