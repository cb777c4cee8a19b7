"""Check command-line overrides, and report each mistake with the allowed values."""

import difflib
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..utils.errors import UserError, did_you_mean, first_line
from .resolve import group_choices
from .schema import check_number
from .workflow import AnyTrainConfig, setting_types

FREE = "env.kwargs"
"""The only mapping with user-defined keys."""

_SUCCESSORS = {"dreamer_atari100k": "paper_atari100k, or fast_atari100k for a CPU"}
"""Successors of experiments that were replaced."""

_BOOLEANS = ("true", "false", "yes", "no", "on", "off", "y", "n", "1", "0")
_IGNORED = {
    "hydra.run.dir": "Set the run folder with run_dir=.",
    "hydra.output_subdir": "The run folder contains config.yaml.",
    "hydra.job.chdir": "A run never changes the working directory.",
    "hydra.mode": "Write -m to train a job for each listed value.",
}
"""Hydra settings that do not affect a run, each with an explanation."""

_WITH_EQUALS_SIGN = re.compile(r"""[^][(){}"'\\ ]*=[^][(){}"'\\ ]*""")

# Hydra accepts new keys if they have this prefix.
_MAY_BE_NEW = "++"


def parse(arguments: Iterable[str], loader: ConfigLoader | None = None) -> list[Override]:
    """Parse overrides according to Hydra's grammar.

    Raises:
        UserError: If an argument is not `key=value`, or its value is empty or `???`.
    """
    parser = OverridesParser.create(config_loader=loader)
    return [_parse_one(argument, parser) for argument in arguments]


def check(override: Override, groups: Mapping[str, list[str]]) -> None:
    """Raise a `UserError` unless a single-valued override is a group's choice or a valid setting."""
    key, value = override.key_or_group, override.value()
    if key in _IGNORED:
        raise UserError(f"{override.input_line}: runs ignore {key}. {_IGNORED[key]}")
    if override.is_delete() and not key.startswith(f"{FREE}."):
        raise UserError(f"{override.input_line}: {key} cannot be deleted. Write {key}=<another value>.")
    if override.is_hydra_override() or override.is_delete() or override.package is not None:
        # Hydra checks its own settings, and rare forms of override, during composition.
        return
    if key not in groups:
        return check_setting(override)
    if not isinstance(value, dict) and str(value) not in groups[key]:
        named = "null" if value is None else value
        known = f"choose one of {', '.join(groups[key])}.{did_you_mean(str(value), groups[key])}"
        if key == "experiment" and re.search(r"-v\d+$", str(value)):
            known = f"choose an environment with env=gymnasium env.id={value}, or env= in Python."
        if key == "experiment" and (successor := _SUCCESSORS.get(str(value))):
            known = f"it was replaced by {successor}."
        raise UserError(f"{override.input_line}: there is no {key} `{named}`: {known}")


def check_setting(override: Override) -> None:
    """Raise a `UserError` if an override's key is not a setting of any workflow or its type is wrong."""
    key, typed, value = override.key_or_group, as_typed(override), override.value()
    is_free = key.startswith(f"{FREE}.")
    if key not in setting_types() and not is_free:
        raise UserError(f"{typed}: {_unknown_key(key)}")
    check_number(key, value)
    if is_free:
        return
    if key == FREE and value is not None:
        raise UserError(f"{typed}: set one argument at a time, e.g. {FREE}.size=8.")
    kind = setting_types()[key]
    if isinstance(value, str) and "${" in value:
        # An interpolation's value is checked during composition.
        return
    if not is_boolean_if_asked(kind, value):
        raise wrong_type(typed, kind)
    try:
        OmegaConf.update(_scratch(), key, value)
    except OmegaConfBaseException as error:
        hint = ""
        if isinstance(value, float) and value.is_integer() and kind in (int, int | None):
            hint = f" Write {key}={int(value)}."
        raise wrong_type(typed, kind, hint) from error


def wrong_type(typed: str, kind: Any, hint: str = "") -> UserError:
    """Return the error for `<key>=<value>` with a value of the wrong type, including the allowed values."""
    key, _, value = typed.lstrip("+").partition("=")
    if isinstance(kind, type) and issubclass(kind, Enum):
        hint = did_you_mean(value, kind.__members__) or hint
    return UserError(f"{typed}: {key} must be {describe(kind)}, got `{value}`.{hint}")


def is_boolean_if_asked(kind: Any, value: object) -> bool:
    """Return False if a boolean setting has another value, because OmegaConf would convert 9 to true."""
    return kind is not bool or str(value).lower() in _BOOLEANS


@cache
def _scratch() -> DictConfig:
    """Return a shared configuration for validating values, because creating one is slow (50 ms)."""
    return OmegaConf.structured(AnyTrainConfig)


def as_typed(override: Override) -> str:
    """Return an override as the user typed it, without the prefix that `parse` adds to user-defined keys."""
    return str(override.input_line).removeprefix(_MAY_BE_NEW)


def typed_form(value: Any) -> str:
    """Format a value in command-line syntax.

    >>> [typed_form(value) for value in (None, True, 1e-3, "pong")]
    ['null', 'true', '0.001', 'pong']
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return value.name
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe(kind: Any) -> str:
    """Describe a type for users.

    >>> describe(int), describe(float | None)
    ('a whole number', 'a number or null')
    """
    if isinstance(kind, UnionType):
        return " or ".join("null" if part is type(None) else describe(part) for part in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(kind.__members__)
    if get_origin(kind) is list:
        return "a list such as [a,b]"
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Any: "a mapping"}
    return plain[kind]


def explain(error: Exception) -> UserError:
    """Convert an error that Hydra or OmegaConf raised about configuration files to a `UserError`."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            return cause
        if isinstance(cause, OmegaConfBaseException) and cause.full_key:
            return UserError(f"{cause.full_key}: {first_line(cause)}")
        cause = cause.__cause__
    text = " ".join(str(error).split())
    if found := re.match(r"In '(.+)': Could not override '(\w+)'", text):
        file, group = found.groups()
        place = f"which would replace its own values of {group}"
        return UserError(f"{file} has `override /{group}`, {place}. Write `/{group}/<choice>` instead.")
    if found := re.match(r"(In '.+'): \w+ raised while composing config: (.+) full_key: ", text):
        return UserError(": ".join(found.groups()) + ".")
    return UserError(text)


def _parse_one(argument: str, parser: OverridesParser) -> Override:
    key, sign, value = argument.partition("=")
    if not sign and not argument.startswith("~"):
        hint = _hint_for_word(argument)
        raise UserError(f"`{argument}` is not of the form key=value (e.g. training.batch_size=16).{hint}")
    if sign and not value and not argument.startswith("~"):
        raise UserError(f"{argument} has no value. Write {key}=VALUE.")
    prefix = _MAY_BE_NEW if key.startswith(f"{FREE}.") else ""
    is_text = setting_types().get(key) in (str, str | None)
    try:
        override = parser.parse_overrides([prefix + argument])[0]
    except HydraException as error:
        # Folders of multirun jobs contain equals signs: resume=experiments/<sweep>/0-seed=1.
        if is_text and re.fullmatch(_WITH_EQUALS_SIGN, value):
            return _parse_one(f'{key}="{value}"', parser)
        repair = f"Quote the value twice if it contains spaces, commas or brackets: '{key}=\"...\"'."
        raise UserError(f"{argument}: not in Hydra's grammar ({first_line(error)}). {repair}") from error
    except ValueError as error:
        # Python raises this error for a number with more than 4,300 digits.
        raise UserError(f"{key} must be below 2**63, got a number with thousands of digits.") from error
    if _has_missing(override.value()):
        key = override.key_or_group
        raise UserError(f"{argument}: {MISSING} is not a value. Write {key}=VALUE, or omit {key}.")
    # Text such as the folder 2026_11_30 would become a number.
    is_number = is_text and isinstance(override.value(), bool | int | float)
    return _parse_one(f'{key}="{value}"', parser) if is_number else override


def _hint_for_word(word: str) -> str:
    """Return a suggestion for a word without a value: a setting or a group's choice."""
    if word in setting_types():
        return f" Write {word}=VALUE."
    groups = group_choices()
    # Experiments come last, so that they win over choices with the same name.
    groups["experiment"] = groups.pop("experiment")
    choices = {choice: f"{group}={choice}" for group, names in groups.items() for choice in names}
    near = difflib.get_close_matches(word, [*choices, *setting_types()], n=1)
    return f" Did you mean `{choices.get(near[0], near[0])}`?" if near else ""


def _has_missing(value: Any) -> bool:
    """Return whether a value is or contains `???`. OmegaConf would replace it with a default."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value == MISSING or any(map(_has_missing, parts))


def _unknown_key(key: str) -> str:
    """Return the message for an unknown key, with the keys of its section and the closest name."""
    known = list(setting_types())
    if below := [name for name in known if name.startswith(f"{key}.")]:
        return f"{key} is a section, not a setting. Set one of {', '.join(below)}."
    # Prefer the same name in another section: `training.batch_size` for `batch_size`.
    same = [name for name in known if name.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    section = key.rpartition(".")[0]
    while section and not any(name.startswith(f"{section}.") for name in known):
        section = section.rpartition(".")[0]
    start = f"{section}." if section else ""
    keys = sorted({name.removeprefix(start).split(".")[0] for name in known if name.startswith(start)})
    where = f"{section} has the keys" if section else "The sections and keys are"
    near = difflib.get_close_matches(key.removeprefix(start), keys if section else (), n=1)
    similar = same or [start + name for name in near] or _with_same_words(key, known)
    names = known if "." in key else [*keys, *group_choices(), *known]
    hint = f" Did you mean `{similar[0]}`?" if similar else did_you_mean(key, names)
    return f"there is no key {key}.{hint} {where} {', '.join(keys)}."


def _with_same_words(key: str, known: Iterable[str]) -> list[str]:
    """Return the settings with names made only of words from the key, longest first."""
    asked, names = set(re.split(r"[._]", key)), {name: name.rpartition(".")[2].split("_") for name in known}
    found = [name for name, words in names.items() if asked.issuperset(words)]
    return sorted(found, key=lambda name: -len(names[name]))
