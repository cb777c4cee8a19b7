"""The schema of each workflow, and the union of all schemas for composition."""

# pyright: reportIncompatibleVariableOverride=false

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, cast, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from ..buffers import ReplayConfig
from ..envs import EnvConfig, Suite
from ..utils.errors import UserError
from .dreamer import DreamerTrainConfig, DreamerTraining
from .population import Engine, PopulationTrainConfig, PopulationTraining
from .schema import Device, LoggerConfig, TrainConfig, WorkflowName, actual_device, is_setting, leaves

SCHEMAS: dict[WorkflowName, type[TrainConfig]] = {
    WorkflowName.dreamer: DreamerTrainConfig,
    WorkflowName.population: PopulationTrainConfig,
}


_MOST_BYTES = 100
"""Maximum number of bytes that an environment's name or a job's values add to the name of a run."""

_SUITES = frozenset(Suite)
_ATARI = ("env.suite", _SUITES - {Suite.atari}, "env=atari")
_DMC = ("env.suite", _SUITES - {Suite.dmc}, "env=dmc")
_COLLECTORS = ("collect.collectors", frozenset({0}), "collect.collectors")
_RAY = ("engine", frozenset({Engine.local}), "engine=ray")
_INEFFECTIVE: dict[str, tuple[str, frozenset[Any], str]] = {
    **dict.fromkeys(("env.game", "env.noop_max", "env.sticky_actions", "env.full_action_space"), _ATARI),
    "env.max_episode_frames": (*_ATARI[:2], "env.time_limit"),
    "env.time_limit": ("env.suite", frozenset({Suite.atari}), "env.max_episode_frames"),
    **dict.fromkeys(("env.task", "env.observations"), _DMC),
    "env.id": ("env.suite", _SUITES - {Suite.gymnasium, Suite.vector}, "env=gymnasium"),
    "env.vectorization": ("env.suite", frozenset({Suite.atari, Suite.vector}), "env=gymnasium"),
    **dict.fromkeys(("ray.address", "ray.workers", "ray.object_store_mib"), _RAY),
    **dict.fromkeys(("collect.steps", "collect.max_staleness"), _COLLECTORS),
    "buffer.latent_every": ("buffer.store_latents", frozenset({False}), "buffer.store_latents=true"),
}
"""Another setting, its values with which a setting has no effect, and what to set instead."""


@dataclass(kw_only=True)
class AnyTraining(DreamerTraining, PopulationTraining):
    """The section `training` with the settings of all workflows."""


@dataclass(kw_only=True)
class AnyTrainConfig(DreamerTrainConfig, PopulationTrainConfig):
    """All settings of all workflows. This is Hydra's schema, because any file may choose the workflow."""

    env: EnvConfig = field(default_factory=EnvConfig)
    buffer: ReplayConfig = field(default_factory=ReplayConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    training: AnyTraining = field(default_factory=AnyTraining)


def in_own_schema(composed: DictConfig, typed_keys: Iterable[str] = ()) -> DictConfig:
    """Convert an `AnyTrainConfig` to the schema of its workflow, without resolving it.

    Settings of the other workflow are dropped. `typed_keys` are the keys that the user typed.

    Raises:
        UserError: For the first of `typed_keys` that the workflow does not use.
    """
    schema = SCHEMAS[composed.workflow]
    for key in typed_keys:
        require_key(key, composed)
    values = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=False))
    return cast(DictConfig, OmegaConf.merge(OmegaConf.structured(schema), _settings_of(schema, values)))


def require_key(key: str, config: DictConfig) -> None:
    """Raise a `UserError` if a setting, section or group exists only in other workflows."""
    owners = [
        workflow
        for workflow, schema in SCHEMAS.items()
        if any(name == key or name.startswith(f"{key}.") for name in setting_types(schema))
    ]
    if owners and config.workflow not in owners:
        runs = f"{config.name} uses workflow={config.workflow.value}"
        raise UserError(f"{key} is a setting of workflow={owners[0].value}, but {runs}. Omit it.")


def require_effect(typed_keys: Iterable[str], jobs: Iterable[DictConfig]) -> None:
    """Raise a `UserError` for the first of the keys that the user typed that has no effect in any job."""
    for key in filter(_INEFFECTIVE.get, typed_keys):
        other, idle, repair = _INEFFECTIVE[key]
        values = [OmegaConf.select(job, other) for job in jobs]
        if idle.issuperset(values):
            found = f"{other.removesuffix('.suite')}={str(getattr(values[0], 'value', values[0])).lower()}"
            raise UserError(f"{key} has no effect with {found}. Set {repair}, or omit it.")


@cache
def setting_types(schema: type = AnyTrainConfig) -> dict[str, Any]:
    """Return the type of every setting in a schema, by dotted key."""
    return {key: _type_of(key.split("."), schema) for key, _ in leaves(schema())}


def _settings_of(schema: type, values: dict[str, Any]) -> dict[str, Any]:
    """Return only those nested values that a schema contains."""
    kinds = {item.name: get_type_hints(schema)[item.name] for item in fields(schema) if is_setting(item)}
    return {
        name: _settings_of(kinds[name], value) if is_dataclass(kinds[name]) else value
        for name, value in values.items()
        if name in kinds
    }


def _type_of(path: list[str], owner: Any) -> Any:
    """Return the annotation at the end of a path of fields."""
    for name in path:
        owner = get_args(owner)[1] if get_origin(owner) is dict else get_type_hints(owner)[name]
    return owner


def _by_device(on_cpu: Any, on_cuda: Any, *, _root_: DictConfig) -> Any:
    if "hydra" in _root_ and not OmegaConf.is_struct(_root_):
        # While merging files, Hydra only checks whether the value is a mapping, so torch is not needed.
        return on_cpu
    return on_cuda if actual_device(_root_.device) is Device.cuda else on_cpu


def _name_of_env(*, _root_: DictConfig) -> str:
    """Return the environment's name for use in a folder name, without the module in its id."""
    env = _root_.env
    names = {Suite.atari: env.game, Suite.gymnasium: env.id, Suite.vector: env.id, Suite.dmc: env.task}
    name = names.get(env.suite, env.suite.value)
    return _file_name(re.split("[/:.]", name)[-1]) or Suite.gymnasium.value


def _file_name(text: str) -> str:
    """Return a text as the name of a file or folder."""
    return re.sub(r"[^\w.,=-]+", "-", text).strip("-").encode()[:_MOST_BYTES].decode(errors="ignore")


# `${by_device:value on CPU,value on CUDA}` depends on the device, and `${name_of_env:}` on the environment.
# `${file_name:text}` makes a valid name. They are registered here because processes started by a Hydra
# launcher import only this module for the schema.
OmegaConf.register_new_resolver("by_device", _by_device, replace=True)
OmegaConf.register_new_resolver("name_of_env", _name_of_env, replace=True)
OmegaConf.register_new_resolver("file_name", _file_name, replace=True)
