"""Read a command's own settings, written as key=value, and describe them for --help."""

import inspect
import re
from collections.abc import Sequence
from dataclasses import MISSING as REQUIRED
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..config.overrides import describe, is_boolean_if_asked, typed_form, wrong_type
from ..config.schema import check_number
from ..utils.errors import UserError, did_you_mean

Settings = TypeVar("Settings")


def own_settings(
    schema: type[Settings], arguments: Sequence[str], command: str, usage: str | None, prefix: str = ""
) -> tuple[Settings, list[str]]:
    """Return the settings written as <prefix><name>=<value>, and all other arguments.

    `schema` is a dataclass of plain values. Settings without a default are required. With -h or --help, print
    `usage` (usually the docstring of the command's module) and a line per setting instead.

    Raises:
        SystemExit: With code 0 after printing the help.
        UserError: If an argument is a flag, an unknown setting or an interpolation, if it has the wrong type,
            or if a required setting is missing.
    """
    if not {"-h", "--help"}.isdisjoint(arguments):
        print(f"{(usage or '').strip()}\n\n{_help(schema, prefix)}")
        raise SystemExit(0)
    mine = [argument for argument in arguments if argument.startswith(prefix)]
    others = [argument for argument in arguments if not argument.startswith(prefix)]
    if flags := [argument for argument in others if argument.startswith("-")]:
        raise UserError(f"unknown flag {flags[0]}. {command} accepts settings as key=value, and --help.")
    return _read(schema, mine, command, prefix), others


def _read(schema: type[Settings], arguments: Sequence[str], command: str, prefix: str) -> Settings:
    defaults = {prefix + field.name: field.default for field in fields(schema)}  # pyright: ignore
    values = OmegaConf.structured(schema)
    for argument in arguments:
        key, sign, text = argument.partition("=")
        if "${" in argument or text == MISSING:
            raise UserError(f"{argument}: {command} accepts only plain values, not ${{...}} or {MISSING}.")
        if not sign or key not in defaults:
            names = ", ".join(f"{name}=" for name in defaults)
            hint = did_you_mean(key, defaults)
            # A value without a key is probably meant for the first setting.
            if not (sign or hint or prefix):
                hint = f" Did you mean `{next(iter(defaults))}={argument}`?"
            raise UserError(f"{argument} is not a setting of {command} ({names}).{hint}")
        if not text:
            raise UserError(f"{argument} has no value. Write {key}=VALUE.")
        name, default = key.removeprefix(prefix), defaults[key]
        kind = get_type_hints(schema)[name]
        instead = "" if default is None else f" for {typed_form(default)}"
        refused = wrong_type(argument, kind, "" if default is REQUIRED else f" Omit it{instead}.")
        if not is_boolean_if_asked(kind, text):
            raise refused
        # Do not parse values as YAML: a folder called 007 is not the number 7. The schema converts numbers.
        try:
            values[name] = None if text == "null" else text
        except OmegaConfBaseException as error:
            raise refused from error
        check_number(key, values[name])
    for key in defaults:
        if OmegaConf.is_missing(values, name := key.removeprefix(prefix)):
            raise UserError(f"{key} is missing. Write {key}=VALUE. {_texts(schema)[name]}")
    settings = OmegaConf.to_object(values)
    assert isinstance(settings, schema)
    return settings


def _texts(schema: type[Any]) -> dict[str, str]:
    """Return the docstring of each setting. The docstrings of fields are available only in the source."""
    source = inspect.getsource(schema)
    documented = re.findall(r'^    (\w+): [^\n]*\n    """(.*?)"""', source, re.M | re.S)
    return {name: " ".join(text.split()) for name, text in documented}


def _help(schema: type[Any], prefix: str) -> str:
    """Return a line for each setting with its default, docstring and type."""
    texts, kinds = _texts(schema), get_type_hints(schema)
    defaults = {field.name: field.default for field in fields(schema)}
    pairs = {
        name: f"{prefix}{name}={'VALUE' if default is REQUIRED else typed_form(default)}"
        for name, default in defaults.items()
    }
    width = max(map(len, pairs.values()))
    lines = ["Settings, with their defaults:"]
    for name, pair in pairs.items():
        kind = describe(kinds[name])
        lines.append(f"  {pair:<{width}}  {texts[name]} {kind[0].upper()}{kind[1:]}.")
    return "\n".join(lines)
