"""`reverie-train`: one run from its configuration to its last checkpoint."""

import logging
import os
from pathlib import Path

from omegaconf import OmegaConf

from ..utils.logging import configure_logging
from .banner import start_banner
from .build import build
from .checkpoint import latest_checkpoint
from .checks import environment_spec
from .command_line import run_from_command_line
from .config import TrainConfig
from .memory_guard import LEAK_EXIT_CODE
from .memory_plan import over_text, plan_lines, plan_run
from .reports import Reports
from .run_folder import prepare_run_folder
from .signals import RESUME_ME_EXIT_CODE
from .world_model_orchestrator import WorldModelOrchestrator

_LOG = logging.getLogger(__name__)


def train(config: TrainConfig, notices: list[str]) -> None:
    """Run one configuration.

    Args:
        config: The checked configuration.
        notices: Lines to show first.

    Raises:
        SystemExit: With code 75 if a signal stopped the run before its end, 3 if a leak did; its checkpoint
            is the place to resume.
        UserError: If what was asked cannot be done.
    """
    checkpoint = latest_checkpoint(Path(config.resume)) if config.resume else None
    plan = plan_run(config, environment_spec(config))  # now: its first row is what the process holds already
    run_dir = prepare_run_folder(config)
    close_log = configure_logging(run_dir)
    try:
        parts = build(config, run_dir)
        spec = parts.environment.spec
        banner = start_banner(
            config, spec, parameters=parts.workflow.num_parameters, replay_bytes=parts.replay.nbytes()
        )
        for line in [*notices, *banner, *plan_lines(plan)]:
            _LOG.info(line)
        for resource in plan.over:
            _LOG.warning(over_text(resource))
        reports = Reports(config, run_dir, spec, checkpoint.step if checkpoint else None, plan.memory_mb)
        reports.text(checkpoint.step if checkpoint else 0, "config", _as_markdown(config))
        try:
            orchestrator = WorldModelOrchestrator(config, parts, reports, run_dir, checkpoint)
            finished = orchestrator.run()
        finally:
            reports.close()
            parts.environment.close()
        if finished:
            _LOG.info("finished: %s", run_dir)
        elif orchestrator.guard.must_stop:
            _LOG.error("stopped by memory.on_leak=stop with a checkpoint; see train.log in %s", run_dir)
            raise SystemExit(LEAK_EXIT_CODE)
        else:
            _LOG.warning("stopped; go on with resume=%s", os.path.relpath(run_dir))
            raise SystemExit(RESUME_ME_EXIT_CODE)
    finally:
        close_log()


def main() -> None:
    """Run `reverie-train`."""
    run_from_command_line(train)


def _as_markdown(config: TrainConfig) -> str:
    return f"```yaml\n{OmegaConf.to_yaml(OmegaConf.structured(config))}```"
