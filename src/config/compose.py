"""Compose the configuration of a run or sweep from command-line overrides."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import hydra
import yaml
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..utils.errors import UserError
from ..utils.units import count_text
from .overrides import as_typed, check, explain, parse
from .resolve import CONFIG_PACKAGE, group_choices, register_schemas
from .workflow import in_own_schema, require_effect

HYDRA_VERSION_BASE = "1.3"
_SWEEPER = "hydra/sweeper"


def compose_jobs(
    arguments: Sequence[str], *, multirun: bool = False, config_dir: str | None = None
) -> list[DictConfig]:
    """Return the unresolved configuration of every job, each in its workflow's schema.

    With `multirun`, an override may list several values. Only Hydra's own sweeper can list its jobs in
    advance, so the result is empty for any other sweeper. `config_dir` contains additional files for groups.

    Raises:
        UserError: If an override or a configuration file is invalid.
    """
    register_schemas()
    arguments = with_experiment(arguments)
    search = [] if config_dir is None else [f'hydra.searchpath=["file://{Path(config_dir).absolute()}"]']
    with hydra.initialize_config_module(CONFIG_PACKAGE, version_base=HYDRA_VERSION_BASE):
        loader = GlobalHydra.instance().config_loader()
        groups = group_choices(config_dir)
        overrides = parse(arguments, loader)
        jobs = _jobs(overrides, multirun)
        for override in parse(dict.fromkeys(itertools.chain(*jobs)), loader):
            check(override, groups)
        try:
            composed = [hydra.compose("train", overrides=[*search, *job]) for job in jobs]
            folders = [job.run_dir for job in composed if job.run_dir is not None]
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
            # Hydra raises a ValueError if a group is malformed.
            raise explain(error) from error
    typed_keys = [override.key_or_group for override in overrides]
    if multirun and _SWEEPER in typed_keys:
        return []
    if len(set(folders)) < len(folders):
        repair = f"Omit it, or set the folder of all jobs with hydra.sweep.dir={folders[0]}."
        raise UserError(f"run_dir={folders[0]} would contain {count_text(len(folders), 'run')}. {repair}")
    if multirun:
        _check_sweep(overrides, len(jobs))
    try:
        # Callers read settings that refer to others, some before they are converted.
        for job in composed:
            OmegaConf.to_container(job, resolve=True)
    except OmegaConfBaseException as error:
        raise explain(error) from error
    own = [in_own_schema(job, typed_keys) for job in composed]
    require_effect(typed_keys, composed)
    return own


def _check_sweep(overrides: list[Override], count: int) -> None:
    """Raise a `UserError` if a folder set by `hydra.sweep` contains a run or would contain several."""
    typed = {override.key_or_group: str(override.value()) for override in overrides}
    folder, name = typed.get("hydra.sweep.dir", ""), typed.get("hydra.sweep.subdir", "${}")
    if count > 1 and "${" not in name:
        found = f"hydra.sweep.subdir={name} would contain {count_text(count, 'run')}"
        raise UserError(f"{found}. Omit it to use the number and the values of each job.")
    for number in range(count if folder and "${" not in folder else 0):
        if "${" not in name:
            found = [Path(folder, name)]
        else:
            # The names of jobs begin with their numbers, unless the user sets others.
            same = Path(folder).glob(f"{number}*")
            found = [each for each in same if each.name.partition("-")[0] == str(number)]
        for run in found:
            if os.path.lexists(run / "config.yaml"):
                raise UserError(f"{run} already contains a run. Set another folder with hydra.sweep.dir=.")


def names_of_jobs(overrides: Sequence[Override]) -> str:
    """Return the setting with which Hydra names the folders of jobs only after the values that differ."""
    swept = {each.key_or_group for each in overrides if each.is_sweep_override()}
    same = {"experiment", *(each.key_or_group for each in overrides)} - swept
    return f"hydra.job.config.override_dirname.exclude_keys=[{','.join(sorted(same))}]"


def with_experiment(arguments: Sequence[str]) -> list[str]:
    """Add the experiment `dreamer` if the overrides choose an environment but not an experiment."""
    groups = {argument.partition("=")[0] for argument in arguments}
    return ["experiment=dreamer"] * ("env" in groups and "experiment" not in groups) + [*arguments]


def _jobs(overrides: list[Override], multirun: bool) -> list[list[str]]:
    """Return the overrides of each job, in the format of Hydra's own sweeper."""
    sweeps = [override for override in overrides if override.is_sweep_override()]
    if not multirun:
        if sweeps:
            listed = f"{as_typed(sweeps[0])} lists several values"
            raise UserError(f"{listed}. Add -m to train a job for each, or set a single value.")
        if lines := [line for each in overrides if (line := str(each.input_line)).startswith("hydra.sweep.")]:
            raise UserError(f"{lines[0]} applies to several jobs. Add -m, or use run_dir= for a single run.")
        return [[str(override.input_line) for override in overrides]]
    if any(override.key_or_group == _SWEEPER for override in overrides):
        # Another sweeper chooses these values. Still compose the other overrides to find mistakes in them.
        overrides = [override for override in overrides if not override.is_sweep_override()]
    try:
        return BasicSweeper.split_arguments(overrides, None)[0]
    except HydraException as error:
        raise UserError("A multirun needs lists of values, not intervals. Write key=a,b,c.") from error
