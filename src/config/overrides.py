"""Check the overrides of a command line: each mistake gets a sentence with the allowed values."""

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
"""The mapping whose keys the user chooses."""

_BOOLEANS = ("true", "false", "yes", "no", "on", "off", "y", "n", "1", "0")
_IGNORED = {
    "hydra.run.dir": "Name the folder of a run by run_dir=.",
    "hydra.output_subdir": "The folder of a run has its config.yaml.",
    "hydra.job.chdir": "A run never changes the working directory.",
    "hydra.mode": "Write -m to train a job for each listed value.",
}
"""Settings of Hydra without an effect on a run, with what to do instead."""

_MAY_BE_NEW = "++"  # Hydra's mark of such a key


def parse(arguments: Iterable[str], loader: ConfigLoader | None = None) -> list[Override]:
    """Return the overrides that `arguments` spell in Hydra's grammar.

    Raises:
        UserError: If one is not `key=value`, or has no value, or has the value `???`.
    """
    parser = OverridesParser.create(config_loader=loader)
    return [_parse_one(argument, parser) for argument in arguments]


def check(override: Override, groups: Mapping[str, list[str]]) -> None:
    """Refuse an override, of a single value, that is no choice of a group and no setting of its type."""
    key, value = override.key_or_group, override.value()
    if key in _IGNORED:
        raise UserError(f"{override.input_line}: runs ignore {key}. {_IGNORED[key]}")
    if override.is_delete() and not key.startswith(f"{FREE}."):
        raise UserError(f"{override.input_line}: {key} cannot be left out. Write {key}=<another value>.")
    if override.is_hydra_override() or override.is_delete() or override.package is not None:
        return  # Hydra's own settings and rare forms: Hydra checks them when it composes
    if key not in groups:
        return check_setting(override)
    if not isinstance(value, dict) and str(value) not in groups[key]:
        named = "null" if value is None else value
        known = f"choose one of {', '.join(groups[key])}.{did_you_mean(str(value), groups[key])}"
        if key == "experiment" and re.search(r"-v\d+$", str(value)):
            known = f"an environment is chosen by env=gymnasium env.id={value}, or in Python by env=."
        raise UserError(f"{override.input_line}: there is no {key} `{named}`; {known}")


def check_setting(override: Override) -> None:
    """Refuse an override that names no setting of any workflow, or gives it a value of another type."""
    key, typed, value = override.key_or_group, as_typed(override), override.value()
    is_free = key.startswith(f"{FREE}.")
    if key not in setting_types() and not is_free:
        raise UserError(f"{typed}: {_unknown_key(key)}")
    check_number(key, value)
    if is_free:
        return
    if key == FREE and value is not None:
        raise UserError(f"{typed}: set one argument at a time, as in {FREE}.size=8.")
    kind = setting_types()[key]
    if isinstance(value, str) and "${" in value:
        return  # an interpolation: its value is checked when it is composed
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
    """Return the error of `<key>=<value>` whose value is not of a type: what is allowed, and the repair."""
    key, _, value = typed.lstrip("+").partition("=")
    if isinstance(kind, type) and issubclass(kind, Enum):
        hint = did_you_mean(value, kind.__members__) or hint
    return UserError(f"{typed}: {key} must be {describe(kind)}, got `{value}`.{hint}")


def is_boolean_if_asked(kind: Any, value: object) -> bool:
    """Return whether a value is a boolean, or its setting has another type: OmegaConf converts 9 to true."""
    return kind is not bool or str(value).lower() in _BOOLEANS


@cache
def _scratch() -> DictConfig:
    """Return a configuration to try values on, one after the other; making it takes 50 ms."""
    return OmegaConf.structured(AnyTrainConfig)


def as_typed(override: Override) -> str:
    """Return an override as the user typed it, without what `parse` puts in front of a free key."""
    return str(override.input_line).removeprefix(_MAY_BE_NEW)


def typed_form(value: Any) -> str:
    """Return a value as a user types it.

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
    """Return a type as a user reads it.

    >>> describe(int), describe(float | None)
    ('a whole number', 'a number or null')
    """
    if isinstance(kind, UnionType):
        return " or ".join("null" if part is type(None) else describe(part) for part in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(kind.__members__)
    if get_origin(kind) is list:
        return "a list, as in [a,b]"
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Any: "a mapping"}
    return plain[kind]


def explain(error: Exception) -> UserError:
    """Return what Hydra or OmegaConf found wrong in the files of a configuration as one sentence."""
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
        place = f"which would take the place of its own values of {group}"
        return UserError(f"{file} has `override /{group}`, {place}. Write `/{group}/<choice>` there.")
    if found := re.match(r"(In '.+'): \w+ raised while composing config: (.+) full_key: ", text):
        return UserError(": ".join(found.groups()) + ".")
    return UserError(text)


def _parse_one(argument: str, parser: OverridesParser) -> Override:
    key, sign, value = argument.partition("=")
    if not sign and not argument.startswith("~"):
        hint = _hint_for_word(argument)
        raise UserError(f"`{argument}` is not of the form key=value, as in training.batch_size=16.{hint}")
    if sign and not value and not argument.startswith("~"):
        raise UserError(f"{argument} has no value; write {key}=VALUE.")
    prefix = _MAY_BE_NEW if key.startswith(f"{FREE}.") else ""
    try:
        override = parser.parse_overrides([prefix + argument])[0]
    except HydraException as error:
        repair = f"Quote the value twice if it holds spaces, commas or brackets: '{key}=\"...\"'."
        raise UserError(f"{argument}: not in Hydra's grammar. {repair}") from error
    except ValueError as error:  # Python's own, for a number of more than 4,300 digits
        raise UserError(f"{key} must be below 2**63, got a number of thousands of digits.") from error
    if _has_missing(override.value()):
        key = override.key_or_group
        raise UserError(f"{argument}: {MISSING} is not a value. Write {key}=VALUE, or omit {key}.")
    return override


def _hint_for_word(word: str) -> str:
    """Return the suggestion for a word without a value: a setting, or a choice of a group."""
    if word in setting_types():
        return f" Write {word}=VALUE."
    groups = group_choices()
    groups["experiment"] = groups.pop("experiment")  # last, because it counts where names are the same
    choices = {choice: f"{group}={choice}" for group, names in groups.items() for choice in names}
    near = difflib.get_close_matches(word, [*choices, *setting_types()], n=1)
    return f" Did you mean `{choices.get(near[0], near[0])}`?" if near else ""


def _has_missing(value: Any) -> bool:
    """Return whether a value is or contains `???`, which OmegaConf would replace by a default."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value == MISSING or any(map(_has_missing, parts))


def _unknown_key(key: str) -> str:
    """Return the sentence about a key that is no setting: its section's keys, and the nearest name."""
    known = list(setting_types())
    below = [name for name in known if name.startswith(f"{key}.")]
    if below:
        return f"{key} is a section, not a setting; set one of {', '.join(below)}."
    # Of the same name in another section first: `batch_size` for `training.batch_size`.
    same = [name for name in known if name.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    similar = same or _of_the_same_words(key, known)
    section = key.rpartition(".")[0]
    while section and not any(name.startswith(f"{section}.") for name in known):
        section = section.rpartition(".")[0]
    start = f"{section}." if section else ""
    keys = sorted({name.removeprefix(start).split(".")[0] for name in known if name.startswith(start)})
    where = f"{section} has the keys" if section else "the sections and keys are"
    names = known if "." in key else [*keys, *group_choices(), *known]
    hint = f" Did you mean `{similar[0]}`?" if similar else did_you_mean(key, names)
    return f"there is no key {key}; {where} {', '.join(keys)}.{hint}"


def _of_the_same_words(key: str, known: Iterable[str]) -> list[str]:
    """Return the settings whose names consist of words of a key's, the one with most of them first."""
    asked, names = set(re.split(r"[._]", key)), {name: name.rpartition(".")[2].split("_") for name in known}
    found = [name for name, words in names.items() if asked.issuperset(words)]
    return sorted(found, key=lambda name: -len(names[name]))
