"""`python -m benchmarks.queue`: train a list of runs on one core, one by one, and keep their raw data."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import Timeout

import reverie
from benchmarks.queue.jobs import (
    EVALUATION_FILE,
    RUN_FILE,
    Job,
    Stop,
    evaluate,
    is_failure,
    train,
    write_result,
)
from benchmarks.queue.rows import read_rows
from reverie.commands.options import own_settings
from reverie.orchestration.signals import RESUME_ME_EXIT_CODE
from reverie.utils.durable_io import read_json
from reverie.utils.errors import UserError, exit_on_user_error, require_range
from reverie.utils.units import count_text

ROOT = Path(__file__).parents[2]
_LOCK_SECONDS = 0.5
_USAGE = """\
Train the runs of a list on one core, one after another: python -m benchmarks.queue runs=<folder> core=1

  python -m benchmarks.queue runs=../runs core=1 rows=benchmarks/atari100k.yaml
  python -m benchmarks.queue runs=../runs show=true     which rows are done, running, interrupted, waiting

Ctrl-C or SIGTERM saves a checkpoint and ends it with exit code 75. The same command resumes the run, skips
rows with results, and skips rows that another queue with the same runs= is training.

"""


@dataclass(kw_only=True, slots=True)
class QueueConfig:
    """Settings of the queue, typed as key=value."""

    runs: str | None = None
    """Folder of the run folders, outside the checkout (required)."""

    core: int = 0
    """CPU core to which training and evaluation are pinned."""

    rows: str = "benchmarks/atari100k.yaml"
    """YAML file with the list of runs."""

    results: str | None = None
    """Folder of the raw data, or null for docs/results/<name of the list>."""

    show: bool = False
    """Show the state of each row without training."""

    def __post_init__(self) -> None:
        require_range("", self, "core", ge=0)
        if self.runs is None:
            raise UserError("runs is missing: give a folder outside the checkout, as in runs=../runs.")
        if Path(self.runs).resolve().is_relative_to(ROOT):
            raise UserError(f"runs={self.runs} is inside the checkout. Choose a folder outside of it.")


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> None:
    """Run the queue. Exit with 0 once no row is left, 75 if a signal stopped it, and 2 after a user error."""
    typed_here = sys.argv[1:] if arguments is None else arguments
    config, _ = own_settings(QueueConfig, typed_here, "queue", _USAGE)
    jobs = jobs_of(config)
    if not config.show:
        run_queue(jobs, config.core)
    print("\n".join(state_lines(jobs)))


def jobs_of(config: QueueConfig) -> list[Job]:
    """Return the rows of the list together with their folders."""
    path = Path(config.rows)
    found = read_rows(path)
    assert config.runs is not None
    runs = Path(config.runs).absolute()
    results = Path(config.results).absolute() if config.results else ROOT / "docs" / "results" / path.stem
    return [Job(row, found.evaluation, runs, results) for row in found.rows]


def run_queue(jobs: list[Job], core: int) -> None:
    """Train, evaluate and record every row that is neither done nor running elsewhere.

    Raises:
        SystemExit: With exit code 75 if a signal stopped the queue.
        UserError: If training or evaluation cannot continue.
    """
    if not Path(reverie.__file__).resolve().is_relative_to(ROOT):
        raise UserError(
            f"reverie is imported from {reverie.__file__}, but its commit is read in {ROOT}. "
            "Install this checkout by `pip install -e .` in an environment of its own."
        )
    if not hasattr(os, "sched_setaffinity"):
        repair = "Train single rows with reverie-train, or use Linux"
        raise UserError(f"core={core}: the queue cannot pin itself to a core on {sys.platform}. {repair}.")
    jobs[0].runs.mkdir(parents=True, exist_ok=True)
    try:
        os.sched_setaffinity(0, {core})
    except OSError as error:
        raise UserError(
            f"core={core} is not a core of this machine (0 to {(os.cpu_count() or 1) - 1})."
        ) from error
    stop = Stop()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for job in jobs:
            try:
                # `show=true` briefly keeps the lock.
                with job.lock.acquire(timeout=_LOCK_SECONDS):
                    if not job.is_done:
                        _run_row(job, stop)
            except Timeout:
                continue
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_row(job: Job, stop: Stop) -> None:
    name = job.row.name
    print(f"{name}: training in {job.run}, log in {job.run}.log", flush=True)
    exit_code = train(job, stop)
    if not stop.requested and exit_code != 0 and not is_failure(exit_code):
        raise UserError(
            f"{name} ended with exit code {exit_code}: see {job.run}.log. The same command resumes it."
        )
    evaluation = evaluate(job, stop) if exit_code == 0 and not stop.requested else None
    if stop.requested and evaluation is None:
        print(
            f"stopped: {name} is at {_step(job.saved_step) or 'its start'}. The same command continues it.",
            flush=True,
        )
        raise SystemExit(RESUME_ME_EXIT_CODE)
    write_result(job, exit_code, evaluation)
    print(f"{name}: {_outcome(job)}. Commit {job.result}.", flush=True)


def state_lines(jobs: list[Job]) -> list[str]:
    """Return a line with each row's state, and a line with the totals."""
    committed = _committed(jobs[0].results)
    states = [_state(job, committed) for job in jobs]
    width = max(len(job.row.name) for job in jobs)
    lines = [
        f"{job.row.name:<{width}}  {': '.join(filter(None, state))}"
        for job, state in zip(jobs, states, strict=True)
    ]
    kinds = [kind for kind, _ in states]
    sums = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    return [*lines, f"{count_text(len(jobs), 'row')}: {sums}"]


def _state(job: Job, committed: set[str]) -> tuple[str, str]:
    """Return the kind of state that a row is in, and further details."""
    if job.is_done:
        is_committed = f"{job.row.name}/{RUN_FILE}" in committed
        return "done" if is_committed else "done, not committed", _outcome(job)
    if job.is_running:
        return "running", _step(job.logged_step)
    return ("interrupted", _step(job.saved_step)) if job.run.exists() else ("waiting", "")


def _step(step: int | None) -> str:
    return f"step {step:,}" if step is not None else ""


def _outcome(job: Job) -> str:
    """Return the score and the cost of a row that is done."""
    run = read_json(job.result / RUN_FILE)
    cost = f"{count_text(run['steps'], 'step')}, {run['core_hours']:.2f} core-hours"
    if run["exit_code"] != 0:
        return f"failed with exit code {run['exit_code']}, {cost}"
    found = read_json(job.result / EVALUATION_FILE)
    return f"mean return {found['mean']:.1f} in {count_text(len(found['returns']), 'episode')}, {cost}"


def _committed(results: Path) -> set[str]:
    """Return a folder's files in the newest commit, relative to the folder (empty outside a checkout)."""
    if not results.exists():
        return set()
    command = ["git", "-C", str(results), "ls-tree", "-r", "--name-only", "HEAD", "."]
    listed = subprocess.run(command, capture_output=True, text=True)
    return set(listed.stdout.splitlines())
