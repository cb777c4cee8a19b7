"""One job of a sweep, as a worker of the cluster runs it: a training process in a folder that is there."""

import ctypes
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..utils.logging import read_lines
from ..utils.logging.writer import METRICS_FILE

OUTPUT = "output.log"
_TRAIN = "from reverie.commands.train import main; main()"
_ON_PARENT_DEATH = 1  # PR_SET_PDEATHSIG of Linux
_AVERAGED = "episode/return"
_LAST = ("evaluation/return_mean", "population/fitness_best_ever", "step")


@dataclass(frozen=True, slots=True)
class Result:
    """How a job ended."""

    exit_code: int
    metrics: dict[str, float]
    """Its last numbers; those of episodes are means over the last of them."""


def run_job(folder: str, cpus: int, last: int) -> Result:
    """Start or continue a job, and wait for its end.

    Args:
        folder: The run folder, with its `config.yaml`.
        cpus: Threads of the process.
        last: Episodes whose returns are averaged.
    """
    with open(Path(folder) / OUTPUT, "ab") as output:
        ended = subprocess.run(
            [sys.executable, "-c", _TRAIN, f"resume={folder}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(cpus)},
            preexec_fn=_stop_with_parent if sys.platform == "linux" else None,
            check=False,
        )
    return Result(ended.returncode, last_metrics(Path(folder), last))


def last_metrics(folder: Path, last: int) -> dict[str, float]:
    """Return the last numbers of a run's `metrics.jsonl`, {} without one."""
    file = folder / METRICS_FILE
    lines = list(read_lines(file)) if os.path.lexists(file) else []
    found = {name: float(line[name]) for line in lines for name in _LAST if name in line}
    returns = [float(line[_AVERAGED]) for line in lines if _AVERAGED in line][-last:]
    if returns:
        found[f"{_AVERAGED}_last_{last}"] = float(np.mean(returns))
    return found


def _stop_with_parent() -> None:
    """Let the system send SIGTERM, after which a run saves and ends, when the worker dies."""
    ctypes.CDLL(None).prctl(_ON_PARENT_DEATH, signal.SIGTERM)
