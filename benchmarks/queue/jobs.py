"""The run of one row: its folders and state, training, evaluation, and the raw data that it produces."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
import zstandard
from filelock import FileLock, Timeout

from benchmarks.queue.rows import Evaluation, Row
from benchmarks.suite.load import read_load
from benchmarks.suite.machine import machine_facts
from benchmarks.sweep import require_same, stop_with_parent
from reverie.checkpoints.checkpoint import list_checkpoints
from reverie.checkpoints.run_folder import CONFIG_FILE
from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.config.saved import read_config
from reverie.orchestration.dreamer.nonfinite import NONFINITE_EXIT_CODE
from reverie.utils.durable_io import fsync_dir, parse_json, read_json, replace_file, replacing, write_file
from reverie.utils.errors import UserError
from reverie.utils.logging.json_lines import COMPRESSED, METRICS_FILE, read_lines

RUN_FILE = "run.json"
EVALUATION_FILE = "evaluation.json"
_TRAINING = "training"
_TRAIN = "from reverie.commands.command_line import main; main()"
_EVALUATE = "from reverie.commands.evaluate import main; main()"
_POLL_SECONDS = 20.0
_ZSTD_LEVEL = 19


class Stop:
    """A signal handler that forwards every signal to the child. The first signal also ends the queue."""

    def __init__(self) -> None:
        self.requested = False
        self.child: subprocess.Popen[bytes] | None = None

    def __call__(self, number: int, _: object) -> None:
        """Forward a signal. Training saves a checkpoint and exits."""
        self.requested = True
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(number)


@dataclass(frozen=True, slots=True)
class Job:
    """A row together with its folders."""

    row: Row
    evaluation: Evaluation
    runs: Path
    """Absolute path of the folder with all run folders."""

    results: Path
    """Absolute path of the folder with all raw data."""

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.runs / self.row.name

    @property
    def result(self) -> Path:
        """The folder of the raw data. It exists once the row is done."""
        return self.results / self.row.name

    @property
    def is_done(self) -> bool:
        """Whether the raw data exists."""
        return (self.result / RUN_FILE).exists()

    @property
    def lock(self) -> FileLock:
        """The lock that a queue acquires while it works on this row."""
        return FileLock(self.runs / f"{self.row.name}.lock")

    @property
    def sessions_file(self) -> Path:
        """File with the resource usage of each process start. It is up to date even after a kill."""
        return self.runs / f"{self.row.name}.sessions.json"

    @property
    def is_running(self) -> bool:
        """Whether a queue is currently working on this row."""
        if not self.runs.exists():
            return False
        with suppress(Timeout), self.lock.acquire(timeout=0):
            return False
        return True

    @property
    def saved_step(self) -> int | None:
        """The step from which the run would resume, or `None` without a checkpoint."""
        steps = [checkpoint.step for checkpoint in list_checkpoints(self.run)]
        return steps[-1] if steps else None

    @property
    def logged_step(self) -> int | None:
        """The last step that the run logged, or `None` without a log."""
        file = self.run / METRICS_FILE
        lines = list(read_lines(file)) if file.exists() else []
        return int(lines[-1]["step"]) if lines else None


def train(job: Job, stop: Stop) -> int:
    """Train or resume a row unless its training is done. Return the exit code of `reverie-train`.

    Raises:
        UserError: If the row is invalid, or the run folder belongs to other settings.
    """
    [composed] = compose_jobs(job.row.settings)
    asked, is_new = typed(composed), not (job.run / CONFIG_FILE).exists()
    if is_new:
        job.sessions_file.unlink(missing_ok=True)
    else:
        repair = "Delete that folder, or choose another runs="
        found = f"was started with other settings than {job.row.name} has in the list. {repair}"
        require_same(job.run, asked, found)
    training = [session for session in _sessions(job) if session["what"] == _TRAINING]
    ended = [session["exit_code"] for session in training if "exit_code" in session]
    if ended and (ended[-1] == 0 or is_failure(ended[-1])):
        return ended[-1]
    place = [*job.row.settings, f"run_dir={job.row.name}"] if is_new else [f"resume={job.row.name}"]
    with (job.runs / f"{job.row.name}.log").open("ab") as log:
        return _run(job, _TRAINING, [_TRAIN, *place], stop, log, log)


def evaluate(job: Job, stop: Stop) -> dict[str, Any] | None:
    """Play new episodes with the trained policy, and return the output of `reverie-evaluate`.

    Return `None` if the evaluation was stopped.
    """
    config, limit = read_config(job.run / CONFIG_FILE), job.evaluation.max_frames
    settings = [f"run={job.row.name}", f"episodes={job.evaluation.episodes}", "policy=sample", "device=cpu"]
    if limit is not None:
        settings.append(f"max_steps={limit // config.env.action_repeat}")
    output = job.runs / f"{job.row.name}.evaluation.json"
    with output.open("wb") as printed, (job.runs / f"{job.row.name}.log").open("ab") as log:
        exit_code = _run(job, "evaluation", [_EVALUATE, *settings], stop, printed, log)
    if stop.requested:
        return None
    if exit_code != 0:
        raise UserError(f"the evaluation of {job.row.name} ended with exit code {exit_code}: see {log.name}.")
    return parse_json(output.read_bytes())


def write_result(job: Job, exit_code: int, evaluation: dict[str, Any] | None) -> None:
    """Write the raw data of a finished or failed run atomically."""
    log = list(read_lines(job.run / METRICS_FILE))
    sessions = _sessions(job)
    updates = [line["train/updates"] for line in log if "train/updates" in line]
    training = [session for session in sessions if session["what"] == _TRAINING]
    found = {
        "name": job.row.name,
        "arguments": job.row.settings,
        "exit_code": exit_code,
        "steps": log[-1]["step"] if log else 0,
        "updates": int(updates[-1]) if updates else 0,
        "core_hours": round(sum(session["core_seconds"] for session in training) / 3600, 3),
        "sessions": sessions,
    }
    metrics = (job.run / METRICS_FILE).read_bytes()
    job.results.mkdir(parents=True, exist_ok=True)
    with replacing(job.result) as folder:
        folder.mkdir()
        write_file(folder / CONFIG_FILE, [(job.run / CONFIG_FILE).read_bytes()])
        write_file(
            folder / (METRICS_FILE + COMPRESSED), [zstandard.ZstdCompressor(_ZSTD_LEVEL).compress(metrics)]
        )
        if evaluation is not None:
            write_file(folder / EVALUATION_FILE, [json.dumps(evaluation).encode() + b"\n"])
        write_file(folder / RUN_FILE, [json.dumps(found, indent=1).encode() + b"\n"])
        fsync_dir(folder)
    fsync_dir(job.results)


def is_failure(exit_code: int) -> bool:
    """Return whether a run failed permanently, so that resuming is useless: it diverged after a rollback."""
    return exit_code == NONFINITE_EXIT_CODE


def _sessions(job: Job) -> list[dict[str, Any]]:
    """Return the resource usage of each start for this row."""
    return read_json(job.sessions_file) if job.sessions_file.exists() else []


def _run(job: Job, what: str, words: Sequence[str], stop: Stop, output: IO[bytes], errors: IO[bytes]) -> int:
    """Run Python with one thread in the runs' folder, and record its resource usage."""
    sessions = _sessions(job)
    session = {"what": what, **machine_facts(torch.device("cpu"))}
    sessions.append(session)
    before = read_load()
    # The child needs its own session, because Ctrl-C must reach it only once, through this process.
    process = stop.child = subprocess.Popen(
        [sys.executable, "-c", *words],
        cwd=job.runs,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
        preexec_fn=stop_with_parent if sys.platform == "linux" else None,
    )
    # The signal arrived before this child started.
    if stop.requested:
        process.terminate()
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_POLL_SECONDS)
        now = read_load()
        session |= {
            "core_seconds": round(now.own - before.own, 1),
            "wall_seconds": round(now.clock - before.clock, 1),
            "exit_code": process.returncode,
        }
        replace_file(job.sessions_file, [json.dumps(sessions).encode()])
        if process.returncode is not None:
            return process.returncode
