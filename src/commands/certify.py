"""Train a run and judge its memory: reverie-certify [experiment=<name>] [key=value ...].

  reverie-certify device=cpu                              certify experiment=dreamer_incident on a CPU
  reverie-certify certify.fault=rssm_cache_not_detached   inject a leak, which the report must identify
  reverie-certify experiment=erl_pendulum device=cpu      certify a population over its 25 generations

With torchrun every rank is judged, and the worst result counts.
Exit code: 0 if memory is flat, 1 if not, 8 if the run was interrupted, too short or too noisy to decide, 2
for a user error.
"""

import math
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from heapwatch.counters.glibc import in_use_bytes
from heapwatch.leaks.detector import watched_counters
from heapwatch.leaks.verdict import MIN_SAMPLES
from omegaconf import DictConfig

from ..checkpoints.shards import folder_of_rank
from ..config.compose import compose_jobs
from ..config.population import Engine, PopulationTrainConfig
from ..config.resolve import typed
from ..config.schema import Compile, Device, TrainConfig, WorkflowName
from ..memory.config import OnLeak
from ..orchestration.dreamer.agreement import serialize_ranks
from ..orchestration.orchestrator import Orchestrator, StopReason
from ..orchestration.recipes import recipe_of
from ..orchestration.run import join, open_run
from ..orchestration.signals import Signals
from ..planning import check_run, library_rows
from ..testing.certificate import Certificate, Outcome
from ..testing.faults import Fault, find_fault
from ..testing.judged import FIRST_TIMES, instruments_fraction, judged_series, to_decide
from ..utils.errors import UserError, exit_on_user_error, require_range
from ..utils.process_group import started_ranks
from ..utils.ranks import RankLost, Ranks
from .entry import end_at_once
from .options import own_settings
from .train import faults_as_user_errors, leave_ranks

_MB = 1e6
EXIT_CODES = {Outcome.flat: 0, Outcome.not_flat: 1, Outcome.undecided: 8}
"""In training, exit code 8 means a lost rank. `docs/reliability.md` lists all codes."""

DREAMER_STEPS = 60_000


@dataclass(kw_only=True, slots=True)
class CertifyConfig:
    """Settings of `reverie-certify`, written as certify.key=value."""

    steps: int | None = None
    """Agent steps of the run. null means 60,000 for Dreamer (the reported run crashed at 53,800) and all
    generations for a population."""

    out: str | None = None
    """Folder of the certificate, or null for the run folder."""

    fault: str | None = None
    """Name of a fault in `reverie.testing.faults` to inject. The certificate must then fail."""

    bound_mb: float = 64.0
    """Host memory allowed beyond components and startup, in MB (1e6 bytes). The plan's allowance for CUDA
    libraries, the compiler and bfloat16 kernels is added to it."""

    def __post_init__(self) -> None:
        require_range("certify", self, "steps", ge=1)
        require_range("certify", self, "bound_mb", gt=0)


@exit_on_user_error()
def main(arguments: list[str] | None = None) -> None:
    """Run `reverie-certify`. It exits with one of `EXIT_CODES`, or 2 for a user error."""
    words = sys.argv[1:] if arguments is None else arguments
    settings, overrides = own_settings(CertifyConfig, words, "reverie-certify", __doc__, "certify.")
    if not any(text.startswith("experiment=") for text in overrides):
        overrides.insert(0, "experiment=dreamer_incident")
    command = shlex.join(["python", "scripts/certify_memory.py", *words])
    # Faults have no effect in compiled functions.
    if settings.fault is not None:
        overrides = ["compile=none", *overrides]
    # The number of threads affects memory and the order of summation, so certificates fix it.
    [job] = compose_jobs(["threads=1", *overrides])
    if job.resume is not None:
        raise UserError(
            f"resume={job.resume}: only new runs can be certified. Pass the settings of that run instead."
        )
    if settings.fault is not None and job.compile is not Compile.none:
        got = f"got compile={job.compile.value}. Set compile=none"
        raise UserError(f"certify.fault={settings.fault} needs eager code, {got}.")
    longest, typed_keys = job.training.total_timesteps, {text.partition("=")[0] for text in overrides}
    if settings.steps is None and "training.total_timesteps" in typed_keys:
        asked = f"training.total_timesteps={longest}: certify.steps sets the length of a certified run"
        raise UserError(f"{asked}. Set certify.steps={longest} instead.")
    if steps := settings.steps or (None if job.workflow is WorkflowName.population else DREAMER_STEPS):
        job.training.total_timesteps = steps
    if job.workflow is WorkflowName.dreamer:
        _fit_schedule(job, longest, typed_keys)
    config = typed(job)
    config.memory = replace(config.memory, tracking_enabled=True, on_leak=OnLeak.stop)
    if settings.fault is not None:
        _fault_of(config, settings.fault)
    started = started_ranks()
    check_run(config, recipe_of(config, started))
    if settings.out is not None:
        _make_folder(Path(settings.out))
    try:
        with Signals(end_at_once) as signals, join(config, started) as ranks:
            certificate = certify(config, settings, command, signals, longest, ranks)
            outcome = _save_and_show(certificate, settings.out, ranks)
    except RankLost as error:
        leave_ranks(error, "No certificate was written. Certify the run again")
    if code := EXIT_CODES[outcome]:
        raise SystemExit(code)


def _make_folder(folder: Path) -> None:
    """Create the certificate's folder before the run, so that an error does not waste hours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"certify.out={folder} cannot be created ({error.strerror}). Choose another folder."
        ) from None


def _save_and_show(certificate: Certificate, out: str | None, ranks: Ranks) -> Outcome:
    """Write each rank's certificate to its folder, print only rank 0's, and return the worst outcome."""
    folder = folder_of_rank(Path(out), ranks.index) if out else Path(certificate.run_dir)
    order = list(Outcome)
    found = ranks.gather(torch.tensor([order.index(certificate.outcome)])).tolist()
    if ranks.is_first:
        certificate = replace(certificate, others=tuple(order[index] for index in found[1:]))
        # The disk may be full, so the certificate is printed before it is written.
        print("\n".join(certificate.lines()), flush=True)
    try:
        # Rank 0 comes last, because torchrun ends all ranks once one has failed.
        for is_turn in (not ranks.is_first, ranks.is_first):
            serialize_ranks(ranks, partial(certificate.save, folder), is_turn)
    except OSError as error:
        raise UserError(f"The certificate cannot be written to {folder}: {error.strerror}.") from error
    if ranks.is_first:
        print(f"certificate: {folder}")
    return Outcome.worst(order[index] for index in found)


def _fit_schedule(job: DictConfig, longest: int, typed_keys: set[str]) -> None:
    """Compress the schedule of a run that is too short to judge, but keep the settings that the user typed.

    First-time events happen earlier, in proportion to the preset's length, and samples are more frequent.
    """
    training, steps = job.training, job.training.total_timesteps
    free = [name for name in FIRST_TIMES if f"training.{name}" not in typed_keys]

    def begin() -> int:
        return max((training[name] for name in FIRST_TIMES if training[name] <= steps), default=0)

    # Shorter runs do not train both the world model and the controller.
    is_whole = max(training.learning_starts, training.warmup_steps) < steps
    if is_whole and begin() + (MIN_SAMPLES + 1) * training.log_interval <= steps:
        return
    for name in free if steps < longest else ():
        training[name] = math.ceil(training[name] * steps / longest)
    # An update needs a window from each environment.
    if "learning_starts" in free:
        window = (training.sequence_length + 1) * job.env.num_envs
        training.learning_starts = max(training.learning_starts, window)
    if "training.log_interval" not in typed_keys:
        spacing = (steps - begin()) // (MIN_SAMPLES + 2) // job.env.num_envs * job.env.num_envs
        training.log_interval = max(1, min(training.log_interval, max(spacing, job.env.num_envs)))


def certify(
    config: TrainConfig, settings: CertifyConfig, command: str, signals: Signals, longest: int, ranks: Ranks
) -> Certificate:
    """Run this rank's share to its end or until a leak is certain, and return its certificate.

    `longest` is the length of the preset in agent steps.

    Raises:
        UserError: If the run ends before it can be judged, for example because of a full disk.
    """
    at_start, stops = in_use_bytes(), list[StopReason]()
    with faults_as_user_errors(config), open_run(config, signals, recipe_of(config, ranks)) as run:
        run.guard.trim_heap = True
        if settings.fault is not None:
            _fault_of(config, settings.fault).inject(run)
        for _ in _steps(run, stops):
            pass
    watched = watched_counters(config.memory.leak_threshold_mb, config.device is Device.cuda)
    judged = judged_series(run.run_dir, watched, run.guard.steady_since)
    steps = judged[0].steps
    if not len(steps):
        repair = "Let it run for longer, or lower training.log_interval."
        ended = f"the run ended at step {run.step}, before its first log line"
        raise UserError(f"{ended}, so memory cannot be judged. {repair}")
    # The rest of the run may leak, unless it has leaked already.
    is_whole = stops[0] in (StopReason.finished, StopReason.leak)
    return Certificate(
        command=command,
        run_dir=str(run.config.run_dir),
        fault=settings.fault,
        steps=run.step,
        cut_short="" if is_whole else f"the run ended early: {run.why(stops[0])}. Repeat it.",
        updates=run.updates,
        device=config.device.value,
        judged=judged,
        findings=run.guard.findings,
        unaccounted_mb=float(judged[0].values[-1]) - at_start / _MB,
        bound_mb=settings.bound_mb + sum(row.nbytes for row in library_rows(config)) / _MB,
        instruments_fraction=instruments_fraction(run.run_dir),
        to_decide=to_decide(config, steps, run.guard.steady_since, max(longest, run.step)),
    )


def _steps(run: Orchestrator, stops: list[StopReason]) -> Iterator[None]:
    """Make the steps of a run, and append the reason for its end to `stops`."""
    stops.append((yield from run.run()))


def _fault_of(config: TrainConfig, name: str) -> Fault:
    """Return a fault by name. Raise a `UserError` if the run does not support it."""
    fault = find_fault(name)
    if fault.workflow is not config.workflow:
        found = f"got workflow={config.workflow.value}. Choose another experiment."
        raise UserError(f"certify.fault={name} needs workflow={fault.workflow.value}, {found}")
    if isinstance(config, PopulationTrainConfig):
        is_here = config.engine is Engine.local
        if not is_here or not config.population.gradient:
            key = "population.gradient" if is_here else "engine"
            raise UserError(f"certify.fault={name} needs training in this process. Omit {key}.")
    return fault
