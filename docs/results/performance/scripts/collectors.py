"""Measure agent steps per second of Catch with 20 ms per step, with and without collectors.

`python docs/results/performance/scripts/collectors.py <out.json> [0 1 2 4]` makes a run for each number of
collectors, one after another, with 16 environments and a very small model.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium

HERE = Path(__file__).resolve()
STEP_SECONDS = 0.02
SETTINGS = (
    "experiment=dreamer_catch",
    "env=gymnasium",
    "env.id=reverie/Catch-v0",
    f"env.wrappers=[{HERE.stem}.Slow]",
    "env.num_envs=16",
    "env.action_repeat=1",
    "device=cpu",
    "compile=none",
    "model=debug",
    "controller.horizon=5",
    "training.batch_size=2",
    "training.sequence_length=6",
    "training.learning_starts=160",
    # This makes one update per 100 steps.
    "training.train_ratio=0.12",
    "training.log_interval=160",
    "training.video_interval=0",
    "training.checkpoint_interval=0",
    "training.total_timesteps=1600",
    "buffer.capacity=2000",
    "buffer.chunk_length=32",
)


class Slow(gymnasium.Wrapper):
    """An environment in which each step lasts 20 ms longer."""

    def step(self, action: Any) -> Any:
        time.sleep(STEP_SECONDS)
        return self.env.step(action)


def measure(collectors: int) -> dict[str, Any]:
    """Train, and return the pace of each log interval except the first, which includes the start."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "scripts/train.py", *SETTINGS, f"collect.collectors={collectors}"]
        command += ["collect.steps=4"] * (collectors > 0)
        environment = os.environ | {"PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, f"run_dir={folder}/run"], env=environment, check=True)
        lines = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    intervals = [line for line in lines if "speed/steps_per_second" in line]
    paces = [line["speed/steps_per_second"] for line in intervals[1:]]
    ages = [line.get("collect/staleness_updates_max", 0.0) for line in intervals]
    return {
        "collectors": collectors,
        "steps_per_second": median(paces),
        "of_each_interval": [round(pace, 1) for pace in paces],
        "staleness_updates_max": max(ages),
        "steps": intervals[-1]["step"],
        "updates": intervals[-1]["train/updates"],
    }


def main() -> None:
    out, *counts = sys.argv[1:]
    rows = []
    for count in map(int, counts or ["0", "1", "2", "4"]):
        loads = [os.getloadavg()[0]]
        rows.append(measure(count))
        rows[-1]["load_before_and_after"] = [*loads, os.getloadavg()[0]]
        result = {"step_seconds": STEP_SECONDS, "cores": len(os.sched_getaffinity(0)), "runs": rows}
        Path(out).write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(rows[-1]))


if __name__ == "__main__":
    main()
