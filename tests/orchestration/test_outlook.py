"""A run reports its compressed capacity: once the estimate is stable, and at a restart."""

from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from reverie.orchestration.outlook import OutlookOnce, outlook

from ..buffers.test_compressed import add_frames, frames_buffer, noise
from ..runs.helpers import CATCH, SMALL, metrics_of, resume, start

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


def test_the_outlook_waits_until_the_bytes_of_a_step_stay_as_they_are() -> None:
    buffer = frames_buffer()
    once, said = OutlookOnce(buffer), []
    assert outlook(buffer) is None
    add_frames(buffer, np.zeros((40, 1, 16, 16, 3), np.uint8))
    for step in range(40, 2000, 40):
        if text := once(step):
            said.append((step, text))
        add_frames(buffer, noise(40))
    # The share of raw frames is one eighth at 320, and one sixteenth at 640.
    assert [step for step, _ in said] == [640]
    assert "; buffer.capacity=4,000 is reached first" in said[0][1]
    # The value is available at the start.
    assert OutlookOnce(buffer)(4000) is OutlookOnce(buffer)(8000) is None


def lines_with(run: Path, text: str) -> list[str]:
    return [line for line in (run / "train.log").read_text().splitlines() if text in line]


def test_a_run_says_once_what_its_replay_holds_and_again_where_it_is_resumed(tmp_path: Path) -> None:
    run = start(tmp_path / "run", *CATCH, *CODED)
    [line] = lines_with(run, "coded so far")
    step = int(line.partition("step ")[2].partition(":")[0])
    found = next(
        each for each in metrics_of(run) if "buffer/replay/record_bytes" in each and each["step"] == step
    )
    text = f"replay: {found['buffer/replay/record_bytes']:,.0f} bytes per step coded so far: "
    assert text in line and line.endswith("steps of this environment; buffer.capacity=1,000 is reached first")
    resume(run, "training.total_timesteps=320")
    assert [("compression  " in line, "replay: " in line) for line in lines_with(run, "coded so far")] == [
        (False, True),
        (True, False),
    ]


def test_a_run_whose_frames_do_not_compress_says_so_and_that_old_episodes_go(tmp_path: Path) -> None:
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
    [full] = lines_with(run, "is full with")
    [says] = lines_with(run, "coded so far")
    assert "WARNING replay: buffer.memory_budget_gib=0.003 is full with" in full
    assert says.endswith("steps of this environment, fewer than buffer.capacity=1,000")
