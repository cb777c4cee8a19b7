"""Compose a run, or the runs of a sweep, from what a user typed."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ..utils.errors import UserError
from .overrides import as_typed, check, explain, parse
from .resolve import CONFIG_PACKAGE, group_choices, register_schemas
from .workflow import in_own_schema

HYDRA_VERSION_BASE = "1.3"


def compose_jobs(
    arguments: Sequence[str], *, multirun: bool = False, config_dir: str | None = None
) -> list[DictConfig]:
    """Return the configuration of every job that overrides ask for, not resolved, in its workflow's schema.

    With `multirun` an override may list several values; `config_dir` has further files for the groups.

    Raises:
        UserError: If an override is wrong, or a file of the configuration is.
    """
    register_schemas()
    arguments = with_experiment(arguments)
    search = [] if config_dir is None else [f"hydra.searchpath=[file://{Path(config_dir).absolute()}]"]
    with hydra.initialize_config_module(CONFIG_PACKAGE, version_base=HYDRA_VERSION_BASE):
        loader = GlobalHydra.instance().config_loader()
        groups = group_choices(config_dir)
        overrides = parse(arguments, loader)
        jobs = _jobs(overrides, multirun)
        for override in parse(dict.fromkeys(itertools.chain(*jobs)), loader):
            check(override, groups)
        try:
            composed = [hydra.compose("train", overrides=[*search, *job]) for job in jobs]
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
            raise explain(error) from error  # ValueError: Hydra's own, for malformed groups
    typed_keys = [override.key_or_group for override in overrides]
    return [in_own_schema(job, typed_keys) for job in composed]


def with_experiment(arguments: Sequence[str]) -> list[str]:
    """Return overrides with the experiment `dreamer` if they name an environment and no experiment."""
    groups = {argument.partition("=")[0] for argument in arguments}
    return ["experiment=dreamer"] * ("env" in groups and "experiment" not in groups) + [*arguments]


def _jobs(overrides: list[Override], multirun: bool) -> list[list[str]]:
    """Return the overrides of each job: the product of all values listed, in the order of Hydra's sweeper."""
    choices: list[list[str]] = []
    for override in overrides:
        if not override.is_sweep_override():
            choices.append([str(override.input_line)])
        elif not multirun:
            raise UserError(
                f"{as_typed(override)} lists several values; add -m to train a job for each, or name one."
            )
        elif not override.is_discrete_sweep():
            raise UserError(f"{override.input_line}: an interval is not a list of jobs; write a,b,c.")
        else:
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
    return [list(job) for job in itertools.product(*choices)]
