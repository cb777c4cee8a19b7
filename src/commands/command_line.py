"""From the command line to checked runs; a mistake gives one sentence and exit code 2, and creates nothing.

A single run is composed here and handed to the task. A multirun is checked job by job, then left to Hydra,
whose launchers stay usable; so are `--cfg`, `--info` and `--help`.
"""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from .. import __version__
from ..checkpoints.remote import restore
from ..checkpoints.run_folder import check_change, resume_run
from ..config.compose import HYDRA_VERSION_BASE, _with_experiment, compose_jobs
from ..config.overrides import parse
from ..config.presets import device_notice
from ..config.resolve import CONFIG_PACKAGE, register_schemas, typed
from ..config.schema import TrainConfig
from ..config.workflow_keys import require_read
from ..orchestration.recipes import recipe_of
from ..planning import Compose, Preflight, check_run, preflight_of
from ..utils.errors import FlagParser, UserError, did_you_mean, exit_on_user_error
from ..utils.remote_urls import URL_SEPARATOR

Task = Callable[[TrainConfig, Preflight, list[str]], None]
"""A run: takes its checked configuration, what is known of it, and the notices to show before it starts."""


def run_from_command_line(task: Task, arguments: Sequence[str] | None = None) -> None:
    """Run `task` for what the command line asks: one run, a resumed run, or every job of a multirun.

    Args:
        task: Called once per run, in this process and folder. What it raises passes, but for `UserError`.
        arguments: Command line without the program's name; None for that of this process.

    Raises:
        SystemExit: With code 2 after a `UserError`, whose message is then the only line on stderr.
    """
    with exit_on_user_error():
        flags = _parse_flags(sys.argv[1:] if arguments is None else list(arguments))
        if flags.hydra_help:
            return _leave_to_hydra(flags, task)
        overrides = parse(flags.overrides)
        resume = {item.key_or_group: item.value() for item in overrides}.get("resume")
        if resume is not None:
            changes = [item for item in overrides if item.key_or_group != "resume"]
            return _resume(task, flags, str(resume), changes)
        composed = compose_jobs(flags.overrides, multirun=flags.multirun, config_dir=flags.config_dir)
        if flags.help or flags.info or flags.cfg:
            return _leave_to_hydra(flags, task)
        configs = [typed(job) for job in composed]
        for config in configs:
            require_read(config, [item.key_or_group for item in overrides])

        def compose(change: str) -> TrainConfig:
            return typed(compose_jobs([*flags.overrides, change], config_dir=flags.config_dir)[0])

        checked = _check_runs(configs, None if flags.multirun else compose)
        if flags.multirun:
            return _leave_to_hydra(flags, task)
        task(configs[0], checked[0], device_notice(composed[0]))


def _parse_flags(arguments: list[str]) -> argparse.Namespace:
    """Return the flags and, as `overrides`, the rest; a flag may stand before, between or after overrides."""
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
        name = unknown[0]
        plain = " Settings are written without dashes: key=value." if "=" in name else ""
        hint = did_you_mean(name, known) + plain
        raise UserError(f"unknown flag {name}; the flags are {', '.join(known)}.{hint}")
    if flags.config_dir is not None and not Path(flags.config_dir).is_dir():
        raise UserError(f"--config-dir={flags.config_dir} is not a folder.")
    if flags.resolve and not flags.cfg:
        raise UserError("--resolve only goes with --cfg; write --cfg job --resolve.")
    return flags


def _check_runs(configs: list[TrainConfig], compose: Compose | None) -> list[Preflight]:
    """Check every job before the first one starts; return what is known of each."""
    folders = [config.run_dir for config in configs if config.run_dir is not None]
    if len(set(folders)) < len(folders):
        raise UserError(
            f"run_dir={folders[0]} would hold {len(folders)} runs. Leave it out, or name the folder of all "
            f"jobs by hydra.sweep.dir={folders[0]}."
        )
    return [check_run(config, recipe_of(config), compose) for config in configs]


def _resume(task: Task, flags: argparse.Namespace, folder: str, changes: list[Override]) -> None:
    """Run `task` with the configuration saved in `folder`, or in the remote copy of which that is the URL."""
    if flags.multirun or flags.cfg or flags.help or flags.info or flags.config_dir:
        raise UserError(f"resume={folder} goes on with one run as it was saved; it takes values, not flags.")
    restored: list[str] = []
    if URL_SEPARATOR in folder:
        typed_folders = [str(change.value()) for change in changes if change.key_or_group == "run_dir"]
        changes = [change for change in changes if change.key_or_group != "run_dir"]
        for change in changes:  # before anything is fetched
            check_change(change)
        folder, restored = restore(folder, next(iter(typed_folders), None))
    config, notices = resume_run(folder, changes)
    require_read(config, [item.key_or_group for item in changes])
    task(config, check_run(config, recipe_of(config)), [*restored, *notices])


def _leave_to_hydra(flags: argparse.Namespace, task: Task) -> None:
    """Let Hydra do what the flags ask; overrides were checked before, so it has nothing to complain about."""
    register_schemas()

    def job(composed: DictConfig) -> None:
        with exit_on_user_error():  # inside, since Hydra would print a traceback
            config = typed(composed)
            config.run_dir = config.run_dir or os.path.relpath(HydraConfig.get().runtime.output_dir)
            task(config, preflight_of(config, recipe_of(config)), device_notice(composed))

    asked = [(f"--{name.replace('_', '-')}", value) for name, value in vars(flags).items() if value]
    before = sys.argv
    sys.argv = [before[0], *_with_experiment(flags.overrides)]
    for flag, value in asked:
        if flag != "--overrides":
            sys.argv.append(flag if value is True else f"{flag}={value}")
    shown = io.StringIO()
    show = contextlib.nullcontext() if flags.multirun else contextlib.redirect_stdout(shown)
    try:
        main = hydra.main(f"pkg://{CONFIG_PACKAGE}", config_name="train", version_base=HYDRA_VERSION_BASE)
        with show:  # Hydra answers output that cannot be written by a traceback
            main(job)()
    finally:
        sys.argv = before
        print(shown.getvalue(), end="")
