"""Run the jobs of a multirun as resumable tasks on a Ray cluster, each in its own process and folder.

A sweep uses plain Ray tasks instead of Ray Tune, because it does not need search or schedules, and Tune also
requires pandas, pyarrow and tensorboardX. A job is a run folder with its `config.yaml`, and starting a job
means resuming that run. On a cluster of several machines, `sweep.out` must be a shared folder.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from reverie.checkpoints.run_folder import CONFIG_FILE, create_run_folder, save_config
from reverie.commands.options import own_settings
from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.config.saved import read_config
from reverie.config.schema import Compile, TrainConfig, leaves
from reverie.orchestration.ray_cluster import Cluster, ClusterLost
from reverie.orchestration.recipes import recipe_of
from reverie.planning import check_run
from reverie.utils.cpus import usable_cpus
from reverie.utils.durable_io import read_json, reading, replace_file
from reverie.utils.errors import UserError, exit_on_user_error, require_package, require_range
from reverie.utils.logging.json_lines import METRICS_FILE, read_lines
from reverie.utils.units import count_text

RESULTS = "sweep.json"
FAILED_EXIT_CODE = 1
_WIDTH = 160
OUTPUT = "output.log"
_TRAIN = "from reverie.commands.command_line import main; main()"
_ON_PARENT_DEATH = 1  # PR_SET_PDEATHSIG of Linux
_AVERAGED = "episode/return"
_LAST = ("evaluation/return_mean", "population/fitness_best_ever", "step")
_USAGE = """\
Run all combinations of the listed values on Ray: sweep.py [overrides of reverie-train] sweep.out=<folder>

  sweep.py experiment=dreamer_catch seed=1,2 world_model.losses.reward=true,false sweep.out=sweeps/reward

The same command again skips finished jobs and continues the others.

"""


@dataclass(kw_only=True, slots=True)
class SweepConfig:
    """Settings of the sweep itself, typed as sweep.key=value."""

    out: str | None = None
    """Folder of the jobs and of `sweep.json`. Required."""

    address: str | None = None
    """Address of an existing cluster, `auto` to find it, or null for this machine."""

    cpus: int = 1
    """Number of CPUs per job. This determines the number of parallel jobs."""

    last: int = 20
    """Number of last episodes that the table's mean return covers."""

    def __post_init__(self) -> None:
        require_range("sweep", self, "cpus", "last", ge=1)


@dataclass(slots=True)
class Job:
    """One run of the sweep."""

    folder: Path
    values: dict[str, Any]
    """Values of the settings that differ between jobs."""

    exit_code: int | None = None
    """Exit code of the job: `None` while it is unfinished, 0 after its last step."""

    metrics: dict[str, float] = field(default_factory=dict)
    """Last values of its metrics. Episode metrics are means over the last episodes."""


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> None:
    """Run a sweep. Exit with 2 if the arguments are invalid, and with 1 if a job is unfinished."""
    typed_here = sys.argv[1:] if arguments is None else arguments
    config, overrides = own_settings(SweepConfig, typed_here, "sweep", _USAGE, "sweep.")
    jobs = sweep(config, overrides)
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table(jobs))
    if any(job.exit_code != 0 for job in jobs):
        raise SystemExit(FAILED_EXIT_CODE)


def sweep(config: SweepConfig, overrides: list[str]) -> list[Job]:
    """Run all unfinished jobs, and update `sweep.json` after each.

    Raises:
        UserError: If a job cannot run, or the folder contains another sweep. In this case no job is started.
    """
    if config.out is None:
        raise UserError("a sweep needs a folder for its jobs. Add sweep.out=sweeps/<name>.")
    require_package("ray", "a sweep")
    out = Path(config.out)
    configs = [typed(job) for job in compose_jobs(overrides, multirun=True)]
    jobs = _jobs(out, configs)
    for job, run in zip(jobs, configs, strict=True):
        require_same(job.folder, run, "contains a job of another sweep. Choose another sweep.out")
        run.resume = run.run_dir if (job.folder / CONFIG_FILE).exists() else None
        check_run(run, recipe_of(run))
    for run in configs:
        if run.resume is None:
            save_config(run, create_run_folder(run))
    try:
        if any(job.exit_code != 0 for job in jobs):
            _run(config, out, jobs)
    except ClusterLost as error:
        raise UserError(f"{error} Repeat the command to run the remaining jobs.") from error
    return jobs


def table(jobs: list[Job]) -> Table:
    """Return a table with each job's settings, exit code and metrics."""
    keys = list(jobs[0].values)
    metrics = sorted({name for job in jobs for name in job.metrics})
    shown = Table("job", *keys, "exit", *metrics)
    for job in jobs:
        shown.add_row(
            job.folder.name,
            *(str(job.values[key]) for key in keys),
            "not run" if job.exit_code is None else str(job.exit_code),
            *(f"{job.metrics[name]:,.6g}" if name in job.metrics else "" for name in metrics),
        )
    return shown


def _jobs(out: Path, configs: list[TrainConfig]) -> list[Job]:
    """Return the jobs with their differing settings and saved results, and set their folders."""
    settings = [dict(leaves(config)) for config in configs]
    varied = [key for key in settings[0] if any(each[key] != settings[0][key] for each in settings)]
    jobs = []
    for index, (config, values) in enumerate(zip(configs, settings, strict=True)):
        folder = out.absolute() / f"job_{index}"
        config.run_dir = str(folder)
        jobs.append(Job(folder, {key: values[key] for key in varied}))
    if (out / RESULTS).exists():
        saved = read_json(out / RESULTS)
        with reading(out / RESULTS):
            for job, each in zip(jobs, saved["jobs"], strict=False):
                if each["result"]:
                    job.exit_code, job.metrics = each["result"]["exit_code"], each["result"]["metrics"]
    return jobs


def require_same(folder: Path, config: TrainConfig, problem: str) -> None:
    """Raise a `UserError` with `problem` if a folder contains a run with other settings."""
    file = folder / CONFIG_FILE
    if file.exists():
        saved, asked = read_config(file), OmegaConf.structured(config)
        for each in (saved, asked):
            # A run chooses these settings itself.
            each.resume, each.run_dir, each.compile, each.threads = None, None, Compile.auto, None
        if saved != asked:
            raise UserError(f"{folder} {problem}.")


def _run(config: SweepConfig, out: Path, jobs: list[Job]) -> None:
    """Run the unfinished jobs on the cluster, with as many in parallel as it has room for."""
    cpus = config.cpus if config.address else max(config.cpus, usable_cpus())
    cluster = Cluster(config.address, cpus, setting="sweep.address")
    try:
        if config.cpus > max(cluster.cpus):
            raise UserError(
                f"sweep.cpus={config.cpus}: no machine of sweep.address={config.address} has more than "
                f"{count_text(max(cluster.cpus), 'CPU')}. Set sweep.cpus={max(1, *cluster.cpus)}."
            )
        # Pickle by value, because workers can import Reverie but not this file.
        cluster.ray.cloudpickle.register_pickle_by_value(sys.modules[run_job.__module__])
        task = cluster.ray.remote(num_cpus=config.cpus, max_retries=0)(run_job)
        due = [job for job in jobs if job.exit_code != 0]
        pending = {task.remote(str(job.folder), config.cpus, config.last): job for job in due}
        while pending:
            done, _ = cluster.ray.wait(list(pending), timeout=1.0)
            if not done:
                cluster.require_alive()
            for reference in done:
                job = pending.pop(reference)
                try:
                    job.exit_code, job.metrics = cluster.ray.get(reference)
                except cluster.ray.exceptions.RayError as error:
                    cluster.require_alive()
                    sys.stderr.write(f"{job.folder.name}: its worker died ({type(error).__name__})\n")
                    continue
                sys.stderr.write(f"{job.folder.name}: exit code {job.exit_code}\n")
                _write(out, jobs)
    finally:
        cluster.close()


def _write(out: Path, jobs: list[Job]) -> None:
    """Write `sweep.json` atomically."""
    ended = []
    for job in jobs:
        values = {key: getattr(value, "name", value) for key, value in job.values.items()}
        result = {"exit_code": job.exit_code, "metrics": job.metrics}
        has_ended = job.exit_code is not None
        ended.append({"folder": job.folder.name, "values": values, "result": result if has_ended else None})
    replace_file(out / RESULTS, [json.dumps({"jobs": ended}).encode()])


def run_job(folder: str, cpus: int, last: int) -> tuple[int, dict[str, float]]:
    """Continue the job in a run folder with `cpus` threads. Return its exit code and last metrics."""
    with open(Path(folder) / OUTPUT, "ab") as output:
        ended = subprocess.run(
            [sys.executable, "-c", _TRAIN, f"resume={folder}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(cpus)},
            preexec_fn=stop_with_parent if sys.platform == "linux" else None,
            check=False,
        )
    return ended.returncode, last_metrics(Path(folder), last)


def last_metrics(folder: Path, last: int) -> dict[str, float]:
    """Return the last values in a run's `metrics.jsonl`, or {} if the file does not exist."""
    file = folder / METRICS_FILE
    lines = list(read_lines(file)) if os.path.lexists(file) else []
    found = {name: float(line[name]) for line in lines for name in _LAST if name in line}
    returns = [float(line[_AVERAGED]) for line in lines if _AVERAGED in line][-last:]
    if returns:
        found[f"{_AVERAGED}_last_{last}"] = float(np.mean(returns))
    return found


def stop_with_parent() -> None:
    """Make the system send this process SIGTERM when its worker dies, so that the run saves and exits."""
    ctypes.CDLL(None).prctl(_ON_PARENT_DEATH, signal.SIGTERM)
