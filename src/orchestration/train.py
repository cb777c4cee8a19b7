"""`reverie-train`: one run from its configuration to its last checkpoint."""

import logging
import os
from pathlib import Path

from .checkpoint import latest_checkpoint
from .checks import environment_spec
from .command_line import run_from_command_line
from .config import TrainConfig
from .memory_guard import LEAK_EXIT_CODE
from .memory_plan import plan_run
from .open_run import open_run
from .signals import RESUME_ME_EXIT_CODE

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
    with open_run(config, plan, checkpoint, notices) as run:
        finished = run.run()
        run.reports.close()  # its last words come after the progress line
        if finished:
            _LOG.info("finished: %s", run.run_dir)
        elif run.guard.must_stop:
            _LOG.error("stopped by memory.on_leak=stop with a checkpoint; see train.log in %s", run.run_dir)
            raise SystemExit(LEAK_EXIT_CODE)
        else:
            _LOG.warning("stopped; go on with resume=%s", os.path.relpath(run.run_dir))
            raise SystemExit(RESUME_ME_EXIT_CODE)


def main() -> None:
    """Run `reverie-train`."""
    run_from_command_line(train)
