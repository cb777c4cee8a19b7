"""Train Pong with different settings for the same CPU time, and measure the results.

    python benchmarks/race.py <folder> [minutes] [line ...]

A line is a named change to the preset. It is trained with one thread until its process has used `minutes`
(default 40) of CPU time. Its agent is then probed, and the result is written to `<folder>/<line>.json`. A
finished line is skipped, and an interrupted line is resumed. The budget is CPU time including compilation,
because that is the user's cost. CPU time depends on the machine and its load, so lines are comparable only
within one race.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from reverie.orchestration.signals import RESUME_ME_EXIT_CODE

LINES = {
    "preset": (),
    "reconstruction": ("world_model.objective=reconstruction",),
    "barlow_64_dims": ("world_model.barlow.dims=64",),
    "infonce": ("world_model.objective=infonce",),
    "harmony": ("world_model.harmony=true",),
    "imagine_last_8": ("controller.imagine_last=8",),
    "imagine_last_4": ("controller.imagine_last=4",),
    "no_decay": ("optimizer.decay_from=0",),
    "rate_3e-4": ("optimizer.learning_rate=3e-4",),
    "rate_2e-3": ("optimizer.learning_rate=2e-3",),
    "actor_rate_1e-4": ("optimizer.actor_learning_rate=1e-4",),
    "actor_rate_1e-3": ("optimizer.actor_learning_rate=1e-3",),
    "decoder_scale_1": ("world_model.objective=reconstruction", "world_model.decoder_scale=1"),
    "decoder_off": ("world_model.decoder=off",),
    "entropy_3e-4": ("controller.entropy_scale=3e-4",),
    "batch_16x16": ("training.batch_size=16", "training.train_ratio=64"),
    "batch_4x32": ("training.batch_size=4", "training.sequence_length=32"),
    "4_emulators": ("env.num_envs=4",),
    "ratio_64": ("training.train_ratio=64",),
    "uniform": ("world_model.objective=reconstruction", "buffer.newest_share=0"),
    "barlow_uniform": ("buffer.newest_share=0",),
    "float32": ("precision=float32",),
}
"""Changes to the preset, by name of the line. The seed is 1 for all lines."""

_COMMON = (
    "experiment=dreamer_ataripong",
    "device=cpu",
    "seed=1",
    "training.total_timesteps=1000000",
    "training.video_interval=0",
    "logger.tensorboard=false",
)
_POLL_SECONDS = 5.0
_LATEST = 10


def race_line(folder: Path, name: str, minutes: float) -> dict[str, Any]:
    """Train one line for its CPU time, probe it, and return its table row."""
    run, spent_file = folder / name, folder / f"{name}.cpu_seconds"
    spent = float(spent_file.read_text()) if spent_file.exists() else 0.0
    if spent < 60 * minutes:
        is_new = not (run / "checkpoints").exists()
        arguments = [*_COMMON, *LINES[name], f"run_dir={run}"] if is_new else [f"resume={run}"]
        process = subprocess.Popen(
            [sys.executable, "scripts/train.py", *arguments],
            stdout=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        before, used = spent, psutil.Process(process.pid)
        try:
            while process.poll() is None and spent < 60 * minutes:
                time.sleep(_POLL_SECONDS)
                times = used.cpu_times()
                spent = before + times.user + times.system
                spent_file.write_text(f"{spent:.0f}")
        finally:
            # Write the time even on interruption, because the line will be resumed from its checkpoint.
            process.send_signal(signal.SIGTERM)
            if process.wait() not in (0, RESUME_ME_EXIT_CODE, -signal.SIGTERM):
                raise SystemExit(f"{name}: the run ended with exit code {process.returncode}")
    command = [
        sys.executable,
        "-m",
        "benchmarks.pong_probe",
        f"run={run}",
        "episodes=6",
        "max_steps=1500",
        "device=cpu",
    ]
    probed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {"line": name, "changes": LINES[name], "cpu_minutes": minutes} | row_of(run, probed.stdout)


def row_of(run: Path, probed: str) -> dict[str, Any]:
    """Return a run's final results from its log and probe."""
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    returns = [line["episode/return"] for line in log if "episode/return" in line]
    trained = [line for line in log if "train/updates" in line][-_LATEST:]
    means = {
        key: round(float(np.mean([line[f"train/{key}"] for line in trained if f"train/{key}" in line])), 3)
        for key in ("policy_entropy", "kl", "loss/reward", "loss/decoder/image")
        if any(f"train/{key}" in line for line in trained)
    }
    found = json.loads(probed)
    return {
        "steps": log[-1]["step"],
        "updates": int(trained[-1]["train/updates"]),
        "last_returns": returns[-_LATEST:],
        **means,
        "probe": {key: value for key, value in found.items() if key != "run"},
    }


def main() -> None:
    """Run the lines that lack a result, one after another."""
    _, given, minutes_text, *names = [*sys.argv, *["", "40"][len(sys.argv) - 1 :]]
    if not given or not minutes_text.replace(".", "", 1).isdecimal() or not set(names) <= LINES.keys():
        sys.stderr.write(f"{__doc__}\nLines: {', '.join(LINES)}\n")
        sys.exit(2)
    folder, minutes = Path(given), float(minutes_text)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or LINES:
        result = folder / f"{name}.json"
        if not result.exists():
            result.write_text(json.dumps(race_line(folder, name, minutes), indent=1) + "\n")
            print(name, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
