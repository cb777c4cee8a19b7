"""Print the times of Catch on two ranks and on one, with one thread each, in turn, as JSON.

python two_ranks.py [rounds] [setting=value ...]

Needs two idle cores. A run makes 500 updates of 8 windows. Its time is the median over the log intervals,
excluding the first ones, in which the networks are compiled. `at_once` is the time of two simultaneous
single-rank runs, one per core. Sharing the machine slows them down, and slows down two ranks in the same way.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SETTINGS = (
    "experiment=dreamer_catch",
    "device=cpu",
    "precision=bfloat16",
    # The preset until 2026-11-26.
    "training.train_ratio=64",
    "training.sequence_length=16",
    "controller.horizon=15",
    "training.warmup_steps=0",
    "training.total_timesteps=1500",
    "training.video_interval=0",
    "logger.tensorboard=false",
)
SKIPPED = 5


def seconds_per_step(ranks: int, settings: list[str]) -> float:
    """Return the seconds per agent step, including its share of an update."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        start = ["torchrun", "--nproc-per-node", str(ranks)] if ranks > 1 else [sys.executable]
        command = [*start, "scripts/train.py", *SETTINGS, *settings, f"run_dir={run}"]
        subprocess.run(command, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["speed/steps_per_second"] for line in lines if "speed/steps_per_second" in line]
    return 1 / statistics.median(speeds[SKIPPED:])


def timed(settings: list[str]) -> dict[str, float]:
    """Return the seconds on one rank, on two ranks, and of two simultaneous runs with one rank per core."""
    alone = {str(ranks): seconds_per_step(ranks, settings) for ranks in (1, 2)}
    with ThreadPoolExecutor() as threads:
        both = threads.map(lambda ranks: seconds_per_step(ranks, settings), (1, 1))
    return alone | {"at_once": statistics.mean(both)}


def main() -> None:
    count, *settings = sys.argv[1:] or ["3"]
    rounds = [timed(settings) for _ in range(int(count))]
    found = {
        "settings": settings,
        "rounds": rounds,
        "ratio": statistics.median(each["2"] / each["1"] for each in rounds),
        "ratio_of_at_once": statistics.median(each["2"] / each["at_once"] for each in rounds),
        "load": os.getloadavg(),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
