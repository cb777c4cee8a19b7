"""From the command line to checked runs; a mistake gives one sentence and exit code 2, and creates nothing.

A single run is composed here and handed to the task. A multirun is checked job by job, then left to Hydra,
whose launchers stay usable; so are `--cfg`, `--info` and `--help`.
"""

import argparse
import contextlib
import io
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from .. import __version__
from ..utils.errors import FlagParser, UserError, did_you_mean, exit_on_user_error
from .banner import device_notice
from .checks import check_run
from .config import CONFIG_PACKAGE, TrainConfig, register_schemas, typed
from .memory_plan import Compose
from .mirror.address import SIGN
from .mirror.restore import restore
from .overrides import check, explain, parse
from .run_folder import check_change, resume_run
from .workflow_settings import require_read

Task = Callable[[TrainConfig, list[str]], None]
"""A run: takes its checked configuration and the notices to show before it starts."""

HYDRA_VERSION_BASE = "1.3"


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

        _check_runs(configs, None if flags.multirun else compose)
        if flags.multirun:
            return _leave_to_hydra(flags, task)
        task(configs[0], device_notice(composed[0]))


def compose_jobs(
    arguments: Sequence[str], *, multirun: bool = False, config_dir: str | None = None
) -> list[DictConfig]:
    """Return the composed, unresolved configuration of every job that the overrides `arguments` ask for.

    Args:
        arguments: Overrides in Hydra's grammar, without flags.
        multirun: Whether an override may list several values.
        config_dir: Folder with further files for the groups.

    Raises:
        UserError: If an override is wrong, or a file of the configuration is.
    """
    register_schemas()
    arguments = _with_experiment(arguments)
    search = [] if config_dir is None else [f"hydra.searchpath=[file://{Path(config_dir).absolute()}]"]
    with hydra.initialize_config_module(CONFIG_PACKAGE, version_base=HYDRA_VERSION_BASE):
        loader = GlobalHydra.instance().config_loader()
        groups = _group_choices(config_dir)
        jobs = _jobs(parse(arguments, loader), multirun)
        for override in parse(dict.fromkeys(itertools.chain(*jobs)), loader):
            check(override, groups)
        try:
            return [hydra.compose("train", overrides=[*search, *job]) for job in jobs]
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
            raise explain(error) from error  # ValueError: Hydra's own, for malformed groups


def _with_experiment(arguments: Sequence[str]) -> list[str]:
    """Return overrides in which an environment without an experiment gets one that is tuned for no task."""
    groups = {argument.partition("=")[0] for argument in arguments}
    return ["experiment=dreamer"] * ("env" in groups and "experiment" not in groups) + [*arguments]


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


def _group_choices(config_dir: str | None) -> dict[str, list[str]]:
    """Return the names of the files in every group; Hydra's own loader takes 40 ms for each group."""
    choices: dict[str, list[str]] = {}
    for root in (resources.files(CONFIG_PACKAGE), *([Path(config_dir)] if config_dir else [])):
        for folder in root.iterdir():
            files = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
            choices.setdefault(folder.name, []).extend(
                name.removesuffix(".yaml") for name in files if name.endswith(".yaml")
            )
    return {group: names for group, names in choices.items() if names}


def _jobs(overrides: list[Override], multirun: bool) -> list[list[str]]:
    """Return the overrides of each job: the product of all values listed, in the order of Hydra's sweeper."""
    choices: list[list[str]] = []
    for override in overrides:
        if not override.is_sweep_override():
            choices.append([str(override.input_line)])
        elif not multirun:
            raise UserError(f"{override.input_line} lists several values; add -m to run a job for each.")
        elif not override.is_discrete_sweep():
            raise UserError(f"{override.input_line}: an interval is not a list of jobs; write a,b,c.")
        else:
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
    return [list(job) for job in itertools.product(*choices)]


def _check_runs(configs: list[TrainConfig], compose: Compose | None) -> None:
    """Check every job before the first one starts."""
    folders = [config.run_dir for config in configs if config.run_dir is not None]
    if len(set(folders)) < len(folders):
        raise UserError(
            f"run_dir={folders[0]} would hold {len(folders)} runs. Leave it out, or name the folder of all "
            f"jobs by hydra.sweep.dir={folders[0]}."
        )
    for config in configs:
        check_run(config, compose)


def _resume(task: Task, flags: argparse.Namespace, folder: str, changes: list[Override]) -> None:
    """Run `task` with the configuration saved in `folder`, or in the remote copy of which that is the URL."""
    if flags.multirun or flags.cfg or flags.help or flags.info or flags.config_dir:
        raise UserError(f"resume={folder} goes on with one run as it was saved; it takes values, not flags.")
    restored: list[str] = []
    if SIGN in folder:
        typed_folders = [str(change.value()) for change in changes if change.key_or_group == "run_dir"]
        changes = [change for change in changes if change.key_or_group != "run_dir"]
        for change in changes:  # before anything is fetched
            check_change(change)
        folder, restored = restore(folder, next(iter(typed_folders), None))
    config, notices = resume_run(folder, changes)
    require_read(config, [item.key_or_group for item in changes])
    check_run(config)
    task(config, [*restored, *notices])


def _leave_to_hydra(flags: argparse.Namespace, task: Task) -> None:
    """Let Hydra do what the flags ask; overrides were checked before, so it has nothing to complain about."""
    register_schemas()

    def job(composed: DictConfig) -> None:
        with exit_on_user_error():  # inside, since Hydra would print a traceback
            config = typed(composed)
            config.run_dir = config.run_dir or os.path.relpath(HydraConfig.get().runtime.output_dir)
            task(config, device_notice(composed))

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
