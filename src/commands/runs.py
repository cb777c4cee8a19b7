"""Check that this machine can start or resume a run, for the command line and the API."""

import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from ..checkpoints.pretrained import holds_networks_alone
from ..checkpoints.run_folder import begin_with, check_change, resume_run
from ..checkpoints.shards import was_begun_here
from ..config.compose import compose_jobs
from ..config.overrides import as_typed, parse
from ..config.presets import device_notice
from ..config.resolve import typed
from ..config.schema import TrainConfig
from ..envs.process_state import collected_changes
from ..orchestration.recipes import recipe_of
from ..planning import Preflight, check_run
from ..planning.suggestions import Compose
from ..utils.errors import UserError
from ..utils.logging.json_lines import METRICS_FILE, read_lines, stored_log
from ..utils.process_group import started_ranks
from ..utils.remote_urls import URL_SEPARATOR
from .comparison import RETURN_TAGS

Checked = tuple[TrainConfig, Preflight, list[str]]
"""Configuration of a run, its preflight, and the notices to log at its start."""


def checked_run(arguments: Sequence[str]) -> Checked:
    """Return the new or resumed run that overrides describe, without creating files.

    Raises:
        UserError: If an override is invalid, or this machine cannot execute the run.
    """
    overrides = parse(arguments)
    typed_items = {item.key_or_group: item for item in overrides}
    if "resume" in typed_items and (resume := typed_items["resume"].value()) is not None:
        if typed_items["resume"].is_sweep_override():
            text = as_typed(typed_items["resume"])
            raise UserError(f"{text}: pass one folder. Put a name with a comma in two pairs of quotes.")
        return _resumed(str(resume), [item for item in overrides if item.key_or_group != "resume"])
    [job] = compose_jobs(arguments)
    return checked_job(job, typed(job), Namespace(overrides=arguments, config_dir=None))


def checked_job(job: DictConfig, config: TrainConfig, flags: Any = None) -> Checked:
    """Check a run, given its composed configuration and the dataclass made from it.

    With `flags`, the command line's `Namespace`, errors suggest changes that make the run fit this machine.
    """

    def compose(change: str) -> TrainConfig:
        return typed(compose_jobs([*flags.overrides, change], config_dir=flags.config_dir)[0])

    return _checked(config, device_notice(job), compose if flags else None)


def _checked(config: TrainConfig, notices: list[str], compose: Compose | None = None) -> Checked:
    # The run's log does not exist yet, so changes that the environment makes to this process become notices.
    with collected_changes() as changes:
        preflight = check_run(config, recipe_of(config, started_ranks()), compose)
    return config, preflight, [*notices, *changes]


def _resumed(folder: str, changes: list[Override]) -> Checked:
    """Return the run saved in `folder`: a path, a URL, or a weights-only folder."""
    if holds_networks_alone(folder):
        return _checked(*begin_with(folder, changes))
    restored: list[str] = []
    if URL_SEPARATOR in folder:
        # All ranks would download to the same folder.
        if (size := started_ranks().size) > 1:
            repair = "Download it once without torchrun, then use resume=<folder>."
            raise UserError(f"resume=<URL> needs one process, but {size} share this run. {repair}")
        typed_folders = [str(change.value()) for change in changes if change.key_or_group == "run_dir"]
        changes = [change for change in changes if change.key_or_group != "run_dir"]
        # Check the changes before the download.
        for change in changes:
            check_change(change)
        from ..checkpoints.mirror import restore

        folder, restored = restore(folder, next(iter(typed_folders), None))
    config, notices = resume_run(folder, changes)
    return _checked(config, [*restored, *notices])


def continued(arguments: list[str]) -> list[str]:
    """Rewrite the arguments for a torchrun restart: later attempts resume the run.

    This applies only to runs started by an earlier attempt of the same torchrun. A folder that contains
    another run is rejected at every attempt.

    Source of the variables: torch.distributed.run, "Environment Variables".
    """
    typed_words = parse([word for word in arguments if not word.startswith("-")])
    folders = {word.key_or_group: str(word.value()) for word in typed_words}
    resumed = folders.get("resume")
    if resumed and URL_SEPARATOR not in resumed and not holds_networks_alone(resumed):
        # The command already resumes a run, so it can be repeated unchanged.
        return arguments
    if "run_dir" not in folders:
        raise UserError(
            "torchrun --max-restarts repeats this command after a failure, so it needs a fixed folder. Add "
            "run_dir=<folder>."
        )
    run_dir = folders["run_dir"]
    is_again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    return [f'resume="{run_dir}"'] if is_again and was_begun_here(Path(run_dir)) else arguments


def score_of(run_dir: str) -> float | None:
    """Return the last value of the first tag in `RETURN_TAGS` that was logged, for sweepers that optimize."""
    path = Path(run_dir) / METRICS_FILE
    lines = list(read_lines(path)) if stored_log(path).is_file() else []
    return next((line[tag] for tag in RETURN_TAGS for line in reversed(lines) if tag in line), None)
