"""The schema of each workflow, and of what is composed before the workflow is known."""

from collections.abc import Iterable
from dataclasses import field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Any, cast, get_args, get_type_hints

from omegaconf import DictConfig, OmegaConf

from ..utils.errors import UserError
from .dreamer import DreamerTrainConfig
from .population import PopulationTrainConfig
from .schema import TrainConfig, WorkflowName, is_setting, leaves

SCHEMAS: dict[WorkflowName, type[TrainConfig]] = {
    WorkflowName.dreamer: DreamerTrainConfig,
    WorkflowName.population: PopulationTrainConfig,
}


def _union(first: type, second: type) -> type:
    """Return a dataclass with the settings of two, without their checks; defaults are those of the first."""
    hints = get_type_hints(second) | get_type_hints(first)
    second_hints = get_type_hints(second)
    members: dict[str, tuple[str, Any, Any]] = {}
    for item in [*fields(first), *fields(second)]:
        if not is_setting(item) or item.name in members:
            continue
        kind, other = hints[item.name], second_hints.get(item.name)
        if is_dataclass(kind) and other not in (None, kind):
            kind = _union(cast(type, kind), cast(type, other))
            value = field(default_factory=kind)
        else:
            value = field(default=item.default, default_factory=item.default_factory)  # pyright: ignore
        members[item.name] = (item.name, kind, value)
    return make_dataclass(first.__name__, members.values(), kw_only=True, slots=True)


AnyTrainConfig = _union(DreamerTrainConfig, PopulationTrainConfig)
"""All settings of all workflows: the schema of Hydra, for any file it composes may choose the workflow."""


def in_own_schema(composed: DictConfig, typed_keys: Iterable[str] = ()) -> DictConfig:
    """Return what the run's workflow reads of a configuration, not resolved, in the schema of that workflow.

    Args:
        composed: A configuration of the schema `AnyTrainConfig`.
        typed_keys: Keys and groups of the command line; the workflow must have them. What files say for the
            other workflow is left out.

    Raises:
        UserError: Naming the first typed key that nothing would read.
    """
    schema = SCHEMAS[composed.workflow]
    for key in typed_keys:
        require_key(key, composed)
    values = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=False))
    return cast(DictConfig, OmegaConf.merge(OmegaConf.structured(schema), _settings_of(schema, values)))


def require_key(key: str, config: DictConfig) -> None:
    """Check that the workflow of a run has a setting, section or group, if any workflow has.

    Raises:
        UserError: If it is one of another workflow.
    """
    owners = [name for name, schema in SCHEMAS.items() if _has(schema, key)]
    if owners and config.workflow not in owners:
        raise UserError(
            f"{key} is a setting of workflow={owners[0].value}; {config.name} runs workflow="
            f"{config.workflow.value}. Leave it out."
        )


@cache
def setting_types(schema: type = AnyTrainConfig) -> dict[str, Any]:
    """Return the type of every setting of a schema by its dotted key."""
    return {key: _type_of(key.split("."), schema) for key, _ in leaves(schema())}


def _has(schema: type, key: str) -> bool:
    return any(name == key or name.startswith(f"{key}.") for name in setting_types(schema))


def _settings_of(schema: type, values: dict[str, Any]) -> dict[str, Any]:
    """Return those of nested values that a schema has."""
    kinds = {item.name: get_type_hints(schema)[item.name] for item in fields(schema) if is_setting(item)}
    return {
        name: _settings_of(kinds[name], value) if is_dataclass(kinds[name]) else value
        for name, value in values.items()
        if name in kinds
    }


def _type_of(path: list[str], owner: Any) -> Any:
    """Return the annotation at the end of a path of fields."""
    kind = get_type_hints(owner)[path[0]]
    if len(path) == 1:
        return kind
    if getattr(kind, "__origin__", None) is dict:
        return get_args(kind)[1]
    return _type_of(path[1:], kind)
