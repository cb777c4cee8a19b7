"""`reverie-train`: train a run from its configuration to its last checkpoint."""

import errno
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import psutil
import torch

from ..checkpoints.checkpoint import list_checkpoints
from ..checkpoints.run_folder import CONFIG_FILE, MOVED
from ..checkpoints.shards import folder_of_run
from ..config.schema import TrainConfig
from ..envs import EnvironmentCrashed
from ..memory.guard import LEAK_EXIT_CODE
from ..orchestration.dreamer.nonfinite import NONFINITE_EXIT_CODE
from ..orchestration.orchestrator import Orchestrator, StopReason
from ..orchestration.ray_cluster import ClusterLost, EngineFailed
from ..orchestration.recipes import recipe_of
from ..orchestration.run import join, open_run
from ..orchestration.signals import RESUME_ME_EXIT_CODE, Signals
from ..planning import Preflight
from ..utils.errors import UserError, first_line
from ..utils.logging.console import configure_logging
from ..utils.logging.writer import OnLine
from ..utils.process_group import started_ranks
from ..utils.ranks import RANK_EXIT_CODE, RankLost, Ranks
from .entry import end_at_once

ENVIRONMENT_EXIT_CODE = 5
GPU_MEMORY_EXIT_CODE = 6
CLUSTER_EXIT_CODE = 7
_RANK_HINT = "To continue from the newest checkpoint, start torchrun again with resume=<run folder>"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DISK_FAULTS = (*_FULL, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM)
_NO_STEPS = "; no steps were left. Raise training.total_timesteps (for a population: training.generations)."
_LOG = logging.getLogger(__name__)


def leave_ranks(error: RankLost, hint: str) -> NoReturn:
    """Log that another rank was lost, with a hint, and end this process."""
    # The run's own log is already closed.
    configure_logging()
    _LOG.error("%s. %s", error, hint)
    logging.shutdown()
    # A pending collective would block a normal exit.
    os._exit(RANK_EXIT_CODE)


def train(config: TrainConfig, preflight: Preflight, notices: list[str]) -> None:
    """Run `train_until` with signal handlers."""
    try:
        with Signals(partial(_end_at_once, config)) as signals:
            for _ in train_until(signals, config, preflight, notices):
                pass
    except RankLost as error:
        leave_ranks(error, _RANK_HINT)


def train_until(
    signals: Signals,
    config: TrainConfig,
    preflight: Preflight,
    notices: list[str],
    on_line: OnLine | None = None,
) -> Iterator[None]:
    """Run a checked configuration to its end, or until `signals` stop it. Log the `notices` first.

    The iterator pauses after each step and must be exhausted. Under `torchrun`, all processes train the run
    together.

    Raises:
        RankLost: If another process has ended or hangs.
        SystemExit: With a code listed in `docs/reliability.md` if the run ends early.
        UserError: If the run is impossible, or the disk is full.
    """
    reason, has_rolled_back = StopReason.rollback, False
    with join(config, started_ranks()) as ranks:
        # `signals` keeps requests across a rollback.
        while reason is StopReason.rollback:
            reason = yield from _attempt(config, ranks, signals, preflight, notices, has_rolled_back, on_line)
            config.resume, has_rolled_back = config.run_dir, True


def _attempt(
    config: TrainConfig,
    ranks: Ranks,
    signals: Signals,
    preflight: Preflight,
    notices: list[str],
    has_rolled_back: bool,
    on_line: OnLine | None,
) -> Generator[None, None, StopReason]:
    """Run until the end or a rollback, and return which it was. Exit if the run stops for another reason."""
    opened = open_run(config, signals, recipe_of(config, ranks), preflight, notices)
    with faults_as_user_errors(config), opened as run:
        run.reports.writer.on_line = on_line
        first_step = run.step
        if has_rolled_back:
            run.begin_after_rollback()
        try:
            reason = yield from run.run()
        except (EnvironmentCrashed, EngineFailed) as error:
            # With a single rank, the step is complete except for the failed environment, so save it. A failed
            # engine may be partway through a generation, and other ranks may be at another step.
            if isinstance(error, EnvironmentCrashed) and ranks.size == 1:
                run.save_if_possible()
            _LOG.error("%s\n%s", error, _resume_hint(run))
            is_cluster = isinstance(error, ClusterLost)
            raise SystemExit(CLUSTER_EXIT_CODE if is_cluster else ENVIRONMENT_EXIT_CODE) from error
        except KeyboardInterrupt as error:
            # This is the second Ctrl-C.
            raise KeyboardInterrupt(_how_to_continue(run.config)) from error
        except torch.OutOfMemoryError as error:
            raise SystemExit(_gpu_memory_ended(run, error)) from error
        # Stop the progress bar before the final log line.
        run.reports.close()
        return _log_outcome(run, reason, first_step)


@contextmanager
def faults_as_user_errors(config: TrainConfig) -> Iterator[None]:
    """Convert errors of environments, and of a full or failing disk, to a `UserError` with a fix."""
    try:
        yield
    except EnvironmentCrashed as error:
        raise UserError(str(error).partition("\n")[0]) from error
    except OSError as error:
        if error.errno not in _DISK_FAULTS and error.strerror != MOVED:
            raise
        raise UserError(_not_writable(config, error)) from error


def _resume_hint(run: Orchestrator) -> str:
    """Return which step of a failed run is saved, and how to resume from it."""
    steps = [checkpoint.step for checkpoint in list_checkpoints(run.run_dir)]
    saved = f"The newest checkpoint is from step {steps[-1]:,}" if steps else "There is no checkpoint yet"
    if steps[-1:] == [run.step]:
        saved = f"Nothing is lost: step {run.step:,} is saved"
    return f"{saved}. Continue with resume={_folder_of_run(run.config)}"


def _end_at_once(config: TrainConfig) -> None:
    """Kill this process's compilers, then this process. Checkpoints are atomic, so this is always safe."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()
    end_at_once(then=_how_to_continue(config) if config.run_dir else "")


def _how_to_continue(config: TrainConfig) -> str:
    """Return how to resume a run. For `reverie-train` without torchrun, this is a complete command."""
    resume = f"resume={_folder_of_run(config)}"
    program = Path(sys.argv[0])
    is_script = program.parts[-2:] == ("scripts", "train.py")
    if started_ranks().size > 1 or not (is_script or program.name == "reverie-train"):
        return f"continue with {resume}"
    paths = [sys.executable, sys.argv[0]] if is_script else [sys.argv[0]]
    return "continue with: " + shlex.join([*(_shortest_name(path) for path in paths), resume])


def _folder_of_run(config: TrainConfig) -> Path:
    """Return the path of the whole run's folder (of all ranks) for `resume=`, as the user typed it."""
    return folder_of_run(Path(str(config.run_dir)), started_ranks())


def _shortest_name(program: str) -> str:
    """Return the shortest name that starts a program from the current folder."""
    name = Path(program).name
    if shutil.which(name) == program:
        return name
    try:
        relative = os.path.relpath(program)
    except FileNotFoundError:
        # The current folder was deleted.
        return program
    return program if relative.startswith(os.pardir) else relative


def _not_writable(config: TrainConfig, error: OSError) -> str:
    """Return the message and fix for a file that could not be written."""
    assert config.run_dir is not None
    if error.strerror == MOVED:
        return f"{config.run_dir} cannot be written: {MOVED}. Continue with resume=<new path>."
    repair = "Free some space" if error.errno in _FULL else "Fix this"
    if error.errno == errno.EFBIG:
        repair = "Raise the file size limit (ulimit -f unlimited)"
    file = f" The file was {os.path.relpath(error.filename, config.run_dir)}." if error.filename else ""
    folder = _folder_of_run(config)
    then = f"continue with resume={folder}" if (folder / CONFIG_FILE).exists() else "start again"
    return f"{config.run_dir} cannot be written: {error.strerror}. {repair}, then {then}.{file}"


def _log_outcome(run: Orchestrator, reason: StopReason, first_step: int) -> StopReason:
    """Log the outcome of a run. Exit unless the run is finished, was ended or rolls back."""
    folder = run.config.run_dir
    if reason is StopReason.finished:
        _LOG.info("finished: %s%s", folder, _NO_STEPS if run.step == first_step else "")
    elif reason is StopReason.ended:
        _LOG.info("ended at step %s: %s; %s", f"{run.step:,}", run.why(reason), _how_to_continue(run.config))
    elif reason is StopReason.rollback and list_checkpoints(run.run_dir):
        _LOG.warning("%s: rolling back to the newest checkpoint", reason.value)
    elif reason is StopReason.leak:
        _LOG.error("stopped: %s; saved a checkpoint, see train.log in %s", reason.value, folder)
        raise SystemExit(LEAK_EXIT_CODE)
    elif reason is StopReason.stopped:
        _LOG.warning("interrupted; %s", _how_to_continue(run.config))
        raise SystemExit(RESUME_ME_EXIT_CODE)
    else:
        _LOG.error(run.why(reason))
        raise SystemExit(NONFINITE_EXIT_CODE)
    return reason


def _gpu_memory_ended(run: Orchestrator, error: torch.OutOfMemoryError) -> int:
    """Save a memory snapshot and a checkpoint, log how to make the run fit, and return the exit code."""
    snapshot = run.parts.snapshots.save(run.step)
    run.save_if_possible()
    details = f" Its allocations are in {snapshot}." if snapshot else ""
    repair = f"{recipe_of(run.config).gpu_repair}. Continue with resume={_folder_of_run(run.config)}"
    full = f"Out of GPU memory at step {run.step:,}.{details} {repair}"
    _LOG.error("%s\n%s", first_line(error), full)
    return GPU_MEMORY_EXIT_CODE
