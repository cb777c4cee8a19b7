"""Open and close a run together with its folder, log and components."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from omegaconf import OmegaConf

from ..checkpoints.checkpoint import CHECKPOINTS
from ..checkpoints.run_folder import check_run_folder, discard_start, existing_part, locked, save_config
from ..checkpoints.shards import checkpoint_of_rank, create_folder_of_rank, note_torchrun
from ..checkpoints.trust import sign_own_classes
from ..config.dreamer import DreamerTrainConfig
from ..config.schema import Compile, Device, TrainConfig, leaves
from ..planning import MemoryPlan, Preflight, over_text, plan_line
from ..utils.compilation import why_not_compiled
from ..utils.logging.console import Heartbeat, configure_logging, shows_bar, still
from ..utils.process_group import joined
from ..utils.ranks import Ranks
from ..utils.units import count_text, size_text
from .orchestrator import AnyParts, OpenedRun, Orchestrator
from .recipes import RunRecipe
from .reports import Reports
from .signals import Signals
from .threads import use_threads

_LOG = logging.getLogger(__name__)
_RESTARTS = "no checkpoint yet: the run starts over with the same configuration"


def join(config: TrainConfig, started: Ranks) -> AbstractContextManager[Ranks]:
    """Return a context that connects the processes started by `torchrun` to one run."""
    timeout = config.training.rank_timeout if isinstance(config, DreamerTrainConfig) else 0.0
    return joined(started, timeout)


@contextmanager
def open_run(
    config: TrainConfig,
    signals: Signals,
    recipe: RunRecipe,
    preflight: Preflight | None = None,
    notices: Sequence[str] = (),
) -> Iterator[Orchestrator]:
    """Log a run's banner and yield the run, ready to start or resume. Close everything at the end.

    Without `preflight` the banner has no plan, and only `config.threads` changes torch's number of threads.

    Raises:
        UserError: If the run folder or its checkpoint is unusable.
    """
    with ExitStack() as opened:
        plan = preflight.plan if preflight else None
        existing, ranks = existing_part(config), recipe.ranks
        run_dir = create_folder_of_rank(config, ranks)
        opened.enter_context(locked(run_dir))
        if ranks.is_first:
            # Another process may have begun a run in this folder since the preflight.
            check_run_folder(config)
        undo = opened.enter_context(ExitStack())
        if not config.resume:
            undo.callback(discard_start, run_dir.absolute(), existing)
        checkpoint = checkpoint_of_rank(config, run_dir, ranks) if config.resume else None
        # Environments may change the working directory while threads are writing.
        run_dir = run_dir.absolute()
        restarts = bool(config.resume) and checkpoint is None
        notices = [*notices, _RESTARTS] if restarts else notices
        opened.callback(configure_logging(run_dir, quiet=not ranks.is_first))
        heartbeat = Heartbeat()
        if not shows_bar(config.logger.progress):
            opened.enter_context(heartbeat)
        if not config.resume:
            # From here on, a run that is killed while it starts can be resumed.
            _record(config, run_dir)
        threads = _ready_torch(config, recipe, preflight, signals, heartbeat)
        parts = recipe.build(config, run_dir)
        opened.callback(parts.environment.close)
        # The checkpoint may be refused, so it is restored before any file of the run is written.
        if checkpoint is not None:
            checkpoint.restore_workflow(parts.workflow)
            checkpoint.restore_replay(parts.replay)
        _record(config, run_dir)
        # A log without this folder means that someone has moved the checkpoints.
        (run_dir / CHECKPOINTS).mkdir(exist_ok=True)
        _log_start([*notices, *start_banner(config, recipe, parts, threads)], plan)
        step = checkpoint.step if checkpoint else 0 if restarts else None
        progress, planned_mb = config.logger.progress, plan.memory_mb if plan else None
        reports = Reports(config, run_dir, parts.environment.spec, progress, step, planned_mb)
        opened.callback(reports.close)
        heartbeat.describe = reports.progress.describe
        settings = OmegaConf.structured(config)
        values = dict(leaves(OmegaConf.to_container(settings, enum_to_str=True)))
        reports.writer.settings(step or 0, OmegaConf.to_yaml(settings), values)
        run = recipe.orchestrator(OpenedRun(config, parts, reports, run_dir, signals, checkpoint))
        opened.callback(run.close)
        # Mirroring must start only after the logs have been truncated to the checkpoint.
        if config.checkpoint.mirror:
            from ..checkpoints.mirror import Mirror

            run.mirror = opened.enter_context(Mirror(config.checkpoint, run_dir))
            if checkpoint is not None:
                run.mirror.upload(checkpoint, prune=False)
        undo.pop_all()
        yield run


def _record(config: TrainConfig, run_dir: Path) -> None:
    """Write the files that are needed to resume a run."""
    save_config(config, run_dir)
    sign_own_classes(config, run_dir)
    # With this note, a restart by torchrun resumes the run, so the configuration must be saved first.
    note_torchrun(run_dir)


def _ready_torch(
    config: TrainConfig,
    recipe: RunRecipe,
    preflight: Preflight | None,
    signals: Signals,
    heartbeat: Heartbeat,
) -> str | None:
    """Set the number of threads and test the compiler. Return the number of threads and the reason for it."""
    threads = None
    if preflight or config.threads:
        updates = partial(recipe.updates_on_zeros, config, preflight.env) if preflight else tuple
        # Compiled code depends on the number of threads, so set that first.
        threads = use_threads(config, updates, recipe.ranks)
    if config.compile is Compile.inductor:
        heartbeat.describe = partial(still, "trying the compiler", time.monotonic())
        _try_compiler(config, signals)
    heartbeat.describe = partial(still, "starting environments and networks", time.monotonic())
    return threads


def _log_start(lines: Sequence[str], plan: MemoryPlan | None) -> None:
    """Log the notices, the banner and the plan."""
    for line in [*lines, *([plan_line(plan)] if plan else [])]:
        _LOG.info(line)
    for resource in plan.over if plan else []:
        _LOG.warning(over_text(resource))


def _try_compiler(config: TrainConfig, signals: Signals) -> None:
    """Disable the compiler for this run and its resumptions if it fails, except after Ctrl-C."""
    _LOG.info("trying the compiler (10 s the first time)")
    if (reason := why_not_compiled(config.device.value)) and not signals.stop:
        config.compile = Compile.graph if config.device is Device.cuda else Compile.none
        _LOG.warning("compile=inductor is unavailable, using compile=%s: %s", config.compile.value, reason)


def start_banner(
    config: TrainConfig, recipe: RunRecipe, parts: AnyParts, threads: str | None = None
) -> list[str]:
    """Return a summary of the run before it starts, one line per item.

    `threads` is the number of CPU threads and the reason for it.
    """
    buffer, replay, spec = config.buffer, parts.replay, parts.environment.spec
    records = count_text(buffer.capacity, "record")
    if buffer.compressed and replay.plan.guaranteed < buffer.capacity:
        records = f"up to {records}, at least {replay.plan.guaranteed:,} if incompressible"
    lines = {
        "run": f"{config.name} (seed {config.seed})",
        "environment": f"{spec.name}, {count_text(spec.num_envs, 'environment')}, "
        f"{count_text(spec.action_repeat, 'frame')} per agent step",
        "observation": "; ".join([spec.observation_text, *spec.notices]),
        "action": spec.action.text,
        "device": f"{config.device.value} (precision={config.precision.value}, "
        f"compile={config.compile.value})",
        **({"threads": threads} if threads else {}),
        "model": f"{recipe.model_name(config)}, {count_text(parts.workflow.num_parameters, 'parameter')}",
        "replay": f"{records} ({size_text(replay.nbytes())} in {buffer.storage.value})",
        **({"prefill": f"episodes of {buffer.prefill}"} if buffer.prefill else {}),
    }
    lines |= recipe.banner_lines(config, spec)
    lines["folder"] = str(config.run_dir)
    width = max(map(len, lines))
    return [f"{name:<{width}}  {text}" for name, text in lines.items()]
