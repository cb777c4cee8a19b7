"""Read the settings of a command itself, which no run has, from key=value, and explain them for --help."""

import ast
import inspect
from collections.abc import Iterable
from dataclasses import fields
from enum import Enum
from itertools import pairwise
from textwrap import dedent
from typing import Any, TypeVar, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..config.overrides import describe
from ..config.schema import check_number
from ..utils.errors import UserError, did_you_mean

Settings = TypeVar("Settings")


def read_settings(
    schema: type[Settings], arguments: Iterable[str], command: str, prefix: str = ""
) -> Settings:
    """Return the settings that `arguments` spell, each as <prefix><name>=<value>; `null` is None.

    Args:
        schema: A dataclass of plain values, all with a default.
        arguments: Those of the command line that are for the command itself.
        command: Its name in messages.
        prefix: What every name begins with.

    Raises:
        UserError: If an argument is no setting, holds an interpolation, or has a value of another type.
    """
    known = [prefix + field.name for field in fields(schema)]  # pyright: ignore[reportArgumentType]
    values = OmegaConf.structured(schema)
    for argument in arguments:
        key, sign, text = argument.partition("=")
        if "${" in argument:
            raise UserError(f"{argument}: {command} takes plain values, no ${{...}}.")
        if not sign or key not in known:
            names = ", ".join(f"{name}=" for name in known)
            raise UserError(
                f"{argument} is not a setting of {command}; they are {names}." + did_you_mean(key, known)
            )
        name = key.removeprefix(prefix)
        try:  # the text, not YAML: a folder called 007 is not the number 7; the schema converts numbers
            values[name] = None if text == "null" else text
        except OmegaConfBaseException as error:
            raise UserError(f"{key}: {error.msg or error}".splitlines()[0]) from error
        check_number(key, values[name])
    settings = OmegaConf.to_object(values)
    assert isinstance(settings, schema)
    return settings


def asks_for_help(arguments: Iterable[str]) -> bool:
    """Return whether -h or --help is among the arguments."""
    return not {"-h", "--help"}.isdisjoint(arguments)


def settings_help(schema: type[Any], prefix: str = "") -> str:
    """Return a line for each setting: name and default, its docstring, and what it takes."""
    kinds, texts = get_type_hints(schema), _docstrings(schema)
    pairs = {field.name: f"{prefix}{field.name}={_typed(field.default)}" for field in fields(schema)}
    width = max(map(len, pairs.values()))
    lines = ["Settings, with their defaults:"]
    for name, pair in pairs.items():
        kind = describe(kinds[name])
        lines.append(f"  {pair:<{width}}  {texts[name]} {kind[0].upper()}{kind[1:]}.")
    return "\n".join(lines) + "\n"


def _typed(default: Any) -> str:
    """Return a default as a user types it."""
    if isinstance(default, Enum):
        return default.name
    return "null" if default is None else str(default)


def _docstrings(schema: type[Any]) -> dict[str, str]:
    """Return the docstring below each field, on one line; Python keeps them only in the source."""
    [definition] = ast.parse(dedent(inspect.getsource(schema))).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for statement, below in pairwise(definition.body):
        match statement, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts
