"""The author's own training on a task of the DeepMind Control Suite, on one CPU core.

    taskset -c 1 .venv-peers-jax/bin/python benchmarks/peers/dreamerv3_run.py <checkout> <task> <folder>

The settings are those of `benchmarks/dmc_curves.yaml`. The folder gets `metrics.jsonl` and `scores.jsonl`,
with the return of each training episode at its environment step. The same command resumes an interrupted run.
More arguments are flags of the author's configuration, such as `--seed=1`. `NPROC=2` uses two threads.
Two things are patched: `jax.jit` accepts optional arguments by position, and MuJoCo renders no images, which
are logged but not learned from.
"""

import os
import sys

os.environ["MUJOCO_GL"] = "disabled"
os.environ.setdefault("NPROC", "1")

import jax
import numpy as np
from dm_control.mujoco import Physics
from dreamerv3_agent import with_positions

SETTINGS = {
    "run.steps": 50_000,
    "run.train_ratio": 512,
    "run.log_every": 30,
    "run.save_every": 600,
    "run.report_every": 1e9,
    "env.dmc.repeat": 2,
    "jax.platform": "cpu",
    "jax.compute_dtype": "float32",
    "jax.prealloc": False,
    "logger.outputs": "jsonl",
}
"""Changes to the configuration `dmc_proprio` at e3f0224, which has the network of 1 million parameters."""


def train(checkout: str, task: str, folder: str, *changes: str) -> None:
    """Train with the author's main function."""
    sys.path.insert(0, checkout)
    from dreamerv3 import main

    jax.jit = with_positions(jax.jit)
    Physics.render = lambda *_, **__: np.zeros((64, 64, 3), np.uint8)
    flags = [f"--{name}={value}" for name, value in SETTINGS.items()]
    main.main(["--configs=dmc_proprio", f"--task=dmc_{task}", f"--logdir={folder}", *flags, *changes])


train(*sys.argv[1:])
