"""Turn the command line into checked runs; a mistake gives one sentence and exit code 2, and creates nothing.

A multirun is checked job by job, then left to Hydra, whose launchers stay usable; so is most help.
"""

import argparse
import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from .. import __version__
from ..checkpoints.pretrained import holds_networks_alone
from ..checkpoints.run_folder import begin_with, check_change, require_no_run, resume_run
from ..checkpoints.shards import was_begun_here
from ..config.compose import HYDRA_VERSION_BASE, compose_jobs, with_experiment
from ..config.overrides import parse
from ..config.presets import device_notice, experiment_lines
from ..config.resolve import CONFIG_PACKAGE, register_schemas, typed
from ..config.schema import TrainConfig
from ..config.workflow import in_own_schema
from ..envs.process_state import collected_changes
from ..orchestration.recipes import recipe_of
from ..planning import Preflight, check_run, preflight_of
from ..utils.errors import FlagParser, UserError, did_you_mean, exit_on_user_error
from ..utils.logging import configure_logging
from ..utils.ranks import RANK_EXIT_CODE, RankLost, number_of_ranks
from ..utils.remote_urls import URL_SEPARATOR
from ..utils.units import count_text

_LOG = logging.getLogger(__name__)

Task = Callable[[TrainConfig, Preflight, list[str]], None]
"""A run: takes its checked configuration, what is known of it, and the notices to show before it starts."""


def leave_ranks(error: RankLost, hint: str) -> NoReturn:
    """End this process, which has lost another rank, with a sentence and what to do."""
    configure_logging()  # the run's own log is closed
    _LOG.error("%s. %s", error, hint)
    logging.shutdown()
    os._exit(RANK_EXIT_CODE)  # an exchange that never ends would keep the interpreter from leaving


def run_from_command_line(task: Task, arguments: Sequence[str] | None = None) -> None:
    """Run `task` in this process for what the command line asks: a run, a resumed run, or all of a multirun.

    Without arguments, print the experiments instead.

    Raises:
        SystemExit: With code 2 after a `UserError`, whose message is then the only line on stderr.
    """
    with exit_on_user_error():
        typed_here = list(sys.argv[1:] if arguments is None else arguments)
        if not typed_here:
            return _list_experiments()
        typed_here = _continued(typed_here)
        flags = _parse_flags(typed_here)
        overrides = parse(flags.overrides)
        named = [str(item.input_line) for item in overrides]
        options = [argument for argument in typed_here if argument not in flags.overrides]
        for_hydra = [*options, *with_experiment(named)]
        if flags.hydra_help:
            return _leave_to_hydra(for_hydra, task)
        resume = {item.key_or_group: item.value() for item in overrides}.get("resume")
        if resume is not None:
            if options:
                what = f"resume={resume} continues one run as it was saved"
                raise UserError(f"{what}; it takes values, not flags.")
        elif flags.multirun or flags.help or flags.info or flags.cfg:
            composed = compose_jobs(named, multirun=flags.multirun, config_dir=flags.config_dir)
            if flags.cfg == "job" and not flags.multirun:
                return print(OmegaConf.to_yaml(composed[0], resolve=flags.resolve))
            if flags.help or flags.info or flags.cfg:
                return _leave_to_hydra(for_hydra, task)
            for item in overrides:
                if item.key_or_group in ("hydra.sweep.dir", "hydra.sweep.subdir"):
                    with contextlib.suppress(FileNotFoundError):
                        os.stat(str(item.value()))  # Hydra answers a name that is too long by a traceback
            _check_jobs([typed(job) for job in composed])
            return _leave_to_hydra(for_hydra, task, is_shown_at_once=True)
        task(*checked_run(named, flags.config_dir))


def _list_experiments() -> None:
    """Print the experiments with their training times, below torchrun only on the first rank."""
    if os.environ.get("RANK", "0") == "0":
        print("Choose an experiment and its settings: reverie-train experiment=NAME [key=value ...]\n")
        print(*(f"  {line}" for line in experiment_lines()), sep="\n")
        print("\nYour own environment: reverie-train env=gymnasium env.id=module:Name-v0")
        print("All options: reverie-train --help")


def checked_run(
    arguments: Sequence[str], config_dir: str | None = None
) -> tuple[TrainConfig, Preflight, list[str]]:
    """Return what a `Task` takes, for the run that overrides ask for: a new one, or one to resume.

    Raises:
        UserError: If one of them is wrong, or the run cannot be made on this machine; nothing was created.
    """
    # The run's log does not exist yet, so changes that its environment makes meanwhile are among the notices.
    with collected_changes() as changes:
        config, preflight, notices = _checked(arguments, config_dir)
    return config, preflight, [*notices, *changes]


def _checked(arguments: Sequence[str], config_dir: str | None) -> tuple[TrainConfig, Preflight, list[str]]:
    overrides = parse(arguments)
    resume = {item.key_or_group: item.value() for item in overrides}.get("resume")
    if resume is not None:
        return _resumed(str(resume), [item for item in overrides if item.key_or_group != "resume"])

    def compose(change: str) -> TrainConfig:
        return typed(compose_jobs([*arguments, change], config_dir=config_dir)[0])

    [composed] = compose_jobs(arguments, config_dir=config_dir)
    config = typed(composed)
    return config, check_run(config, recipe_of(config), compose), device_notice(composed)


def _continued(arguments: list[str]) -> list[str]:
    """Return what to do where `torchrun` may start this command again: the second start continues the run.

    It does so only if the first one began it: the run of another command is refused again, as it was.
    Source of the variables: torch.distributed.run, "Environment Variables".
    """
    if not int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
        return arguments
    folders = {key: value for key, _, value in (word.partition("=") for word in arguments)}
    resumed = folders.get("resume")
    if resumed and URL_SEPARATOR not in resumed and not holds_networks_alone(resumed):
        return arguments  # the same again, with its changes
    if "run_dir" not in folders:
        raise UserError(
            "torchrun --max-restarts starts this command again after a failure, and nothing says where its "
            "run is. Add run_dir=<folder>."
        )
    run_dir = folders["run_dir"]
    is_again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    return [f"resume={run_dir}"] if is_again and was_begun_here(Path(run_dir)) else arguments


def _parse_flags(arguments: list[str]) -> argparse.Namespace:
    """Return the flags, wherever they stand, and as `overrides` the rest."""
    parser = FlagParser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    options = [
        parser.add_argument("-h", "--help", action="store_true"),
        parser.add_argument("-m", "--multirun", action="store_true"),
        parser.add_argument("-c", "--cfg", choices=["job", "hydra", "all"]),
        parser.add_argument("--resolve", action="store_true"),
        parser.add_argument("-i", "--info", choices=["config", "defaults", "defaults-tree", "searchpath"]),
        parser.add_argument("-cd", "--config-dir"),
        parser.add_argument("--hydra-help", action="store_true"),
        parser.add_argument("--version", action="version", version=f"reverie {__version__}"),
    ]
    known = [name for option in options for name in option.option_strings]
    flags, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        hint = did_you_mean(unknown[0], known)
        if "=" in unknown[0]:
            hint += " Settings are written without dashes: key=value."
        raise UserError(f"unknown flag {unknown[0]}; the flags are {', '.join(known)}.{hint}")
    if flags.config_dir is not None and not os.path.isdir(flags.config_dir):
        raise UserError(f"--config-dir={flags.config_dir} is not a folder.")
    if flags.resolve and not flags.cfg:
        raise UserError("--resolve needs --cfg; write --cfg job --resolve.")
    return flags


def _check_jobs(configs: list[TrainConfig]) -> None:
    """Check every job before the first one starts."""
    folders = [config.run_dir for config in configs if config.run_dir is not None]
    if len(set(folders)) < len(folders):
        repair = f"Leave it out, or name the folder of all jobs by hydra.sweep.dir={folders[0]}."
        raise UserError(f"run_dir={folders[0]} would hold {count_text(len(folders), 'run')}. {repair}")
    for config in configs:
        check_run(config, recipe_of(config))


def _resumed(folder: str, changes: list[Override]) -> tuple[TrainConfig, Preflight, list[str]]:
    """Return what a `Task` takes, for the run saved in `folder`: a path, a URL, or networks alone."""
    if holds_networks_alone(folder):
        config, notices = begin_with(folder, changes)
        return config, check_run(config, recipe_of(config)), notices
    restored: list[str] = []
    if URL_SEPARATOR in folder:
        if number_of_ranks() > 1:  # all would fetch it, into one folder
            repair = "Fetch it once without torchrun, then resume=<folder>."
            raise UserError(
                f"resume=<URL> is for one process, and {number_of_ranks()} share this run. {repair}"
            )
        typed_folders = [str(change.value()) for change in changes if change.key_or_group == "run_dir"]
        changes = [change for change in changes if change.key_or_group != "run_dir"]
        for change in changes:  # before anything is fetched
            check_change(change)
        from ..checkpoints.mirror import restore

        folder, restored = restore(folder, next(iter(typed_folders), None))
    config, notices = resume_run(folder, changes)
    return config, check_run(config, recipe_of(config)), [*restored, *notices]


def _leave_to_hydra(arguments: list[str], task: Task, *, is_shown_at_once: bool = False) -> None:
    """Let Hydra do what the flags ask; overrides were checked before, so it has nothing to complain about."""
    register_schemas()

    @hydra.main(f"pkg://{CONFIG_PACKAGE}", config_name="train", version_base=HYDRA_VERSION_BASE)
    def main(composed: DictConfig) -> None:
        with exit_on_user_error():  # inside, since Hydra would print a traceback
            job = in_own_schema(composed)
            config = typed(job)
            config.run_dir = config.run_dir or os.path.relpath(HydraConfig.get().runtime.output_dir)
            require_no_run(Path(config.run_dir))
            task(config, preflight_of(config, recipe_of(config)), device_notice(composed))

    before, shown = sys.argv, io.StringIO()
    sys.argv = [before[0], *arguments]
    try:  # Hydra answers output that cannot be written by a traceback
        with contextlib.nullcontext() if is_shown_at_once else contextlib.redirect_stdout(shown):
            main()
    finally:
        sys.argv = before
        print(shown.getvalue(), end="")
