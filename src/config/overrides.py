"""Overrides of the command line, checked one by one so that each mistake gets its own sentence.

Hydra would refuse the same mistakes, in several lines each and without what is allowed.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, get_args, get_type_hints

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..utils.errors import UserError, did_you_mean
from .schema import TrainConfig, check_number, leaves


def parse(arguments: Iterable[str], loader: ConfigLoader | None = None) -> list[Override]:
    """Return the overrides that `arguments` spell in Hydra's grammar.

    Raises:
        UserError: If one is not `key=value`, or has no value.
    """
    return [_parse_one(argument, OverridesParser.create(config_loader=loader)) for argument in arguments]


def check(override: Override, groups: Mapping[str, list[str]]) -> None:
    """Check that an override names a group and one of its choices, or a setting and a value of its type.

    Args:
        override: Parsed, and not a list of values to sweep over.
        groups: The choices of every group.

    Raises:
        UserError: Otherwise; it names key and value as typed, what is allowed, and the nearest known name.
    """
    key = override.key_or_group
    if override.is_hydra_override() or override.is_delete() or override.package is not None:
        return  # Hydra's own settings and rare forms: Hydra checks them when it composes
    if key in groups:
        if not isinstance(override.value(), dict):
            _check_choice(override, groups[key])
        return
    check_setting(override)


def check_setting(override: Override) -> None:
    """Check that an override names one setting of `TrainConfig` and gives it a value of its type.

    Raises:
        UserError: Otherwise.
    """
    key, typed = override.key_or_group, override.input_line
    if key not in setting_types():
        raise UserError(f"{typed}: {_unknown_key(key)}")
    value = override.value()
    check_number(key, value)
    if isinstance(value, str) and "${" in value:
        return  # an interpolation: its value is checked when it is composed
    try:
        OmegaConf.update(_scratch(), key, value)
    except OmegaConfBaseException as error:
        expected = f"{key} must be {describe(setting_types()[key])}, got `{_value_text(override)}`."
        raise UserError(f"{typed}: {expected}{_hint(key, value)}") from error


@cache
def _scratch() -> DictConfig:
    """Return a configuration to try values on, one after the other; to make it takes 50 ms."""
    return OmegaConf.structured(TrainConfig)


@cache
def setting_types() -> dict[str, Any]:
    """Return the type of every setting by its dotted key."""
    return {key: _type_of(key.split("."), TrainConfig) for key, _ in leaves(TrainConfig())}


def describe(kind: Any) -> str:
    """Return a type in words.

    >>> describe(int), describe(float | None)
    ('a whole number', 'a number or null')
    """
    if isinstance(kind, UnionType):
        return " or ".join("null" if part is type(None) else describe(part) for part in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(kind.__members__)
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]


def explain(error: Exception) -> UserError:
    """Return what Hydra or OmegaConf found wrong in the files of a configuration as one sentence."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            return cause
        if isinstance(cause, OmegaConfBaseException) and cause.full_key:
            return UserError(f"{cause.full_key}: {_first_line(cause)}")
        cause = cause.__cause__
    text = " ".join(str(error).split())
    if found := re.match(r"In '(.+)': Could not override '(\w+)'", text):
        file, group = found.groups()
        return UserError(
            f"{file} has `override /{group}`, which would take the place of its own values of {group}. "
            f"Write `/{group}/<choice>` there."
        )
    return UserError(text)


def _parse_one(argument: str, parser: OverridesParser) -> Override:
    if "=" not in argument and not argument.startswith("~"):
        known = setting_types()
        hint = f" Write {argument}=VALUE." if argument in known else did_you_mean(argument, known)
        raise UserError(f"`{argument}` is not of the form key=value, as in training.batch_size=16.{hint}")
    try:
        override = parser.parse_overrides([argument])[0]
    except HydraException as error:
        key = argument.split("=")[0]
        raise UserError(
            f"{argument}: not in Hydra's grammar ({_first_line(error)}). Quote the value twice if it holds "
            f"spaces, commas or brackets: '{key}=\"...\"'."
        ) from error
    except ValueError as error:  # Python's own, for a number of over 4,300 digits
        key = argument.split("=")[0]
        raise UserError(f"{key} must be below 2**63, got a number of thousands of digits.") from error
    if not override.is_delete() and override.get_value_string() == "":
        raise UserError(f"{argument} has no value; write one behind the sign, as in {argument}VALUE.")
    return override


def _check_choice(override: Override, options: list[str]) -> None:
    value = override.value()
    for choice in value if isinstance(value, list) else [value]:
        if str(choice) not in options:
            name = "null" if choice is None else choice
            raise UserError(
                f"{override.input_line}: there is no {override.key_or_group} `{name}`; choose one of "
                f"{', '.join(options)}.{did_you_mean(str(choice), options)}"
            )


def _unknown_key(key: str) -> str:
    """Return the sentence about a key that is no setting: what is near, and what stands beside it."""
    known = list(setting_types())
    below = [name for name in known if name.startswith(f"{key}.")]
    if below:
        return f"{key} is a section, not a setting; set one of {', '.join(below)}."
    # Of the same name in another section first: `batch_size` for `training.batch_size`.
    same = [name for name in known if name.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    hint = f" Did you mean `{same[0]}`?" if same else did_you_mean(key, known)
    section = key.rpartition(".")[0]
    while section and not any(name.startswith(f"{section}.") for name in known):
        section = section.rpartition(".")[0]
    start = f"{section}." if section else ""
    beside = sorted({name.removeprefix(start).split(".")[0] for name in known if name.startswith(start)})
    where = f"{section} has the keys" if section else "the sections and keys are"
    return f"there is no key {key}; {where} {', '.join(beside)}.{hint}"


def _type_of(path: list[str], owner: Any) -> Any:
    """Return the annotation at the end of a path of fields."""
    kind = get_type_hints(owner)[path[0]]
    if len(path) == 1:
        return kind
    if getattr(kind, "__origin__", None) is dict:
        return get_args(kind)[1]
    return _type_of(path[1:], kind)


def _value_text(override: Override) -> str:
    return override.input_line.partition("=")[2] if override.input_line else str(override.value())


def _hint(key: str, value: Any) -> str:
    """Return the repair of two near misses: a float that is a whole number, a misspelt member of an enum."""
    kind = setting_types()[key]
    if isinstance(value, float) and value.is_integer() and kind in (int, int | None):
        return f" Write {key}={int(value)}."
    if isinstance(kind, type) and issubclass(kind, Enum):
        return did_you_mean(str(value), kind.__members__)
    return ""


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
