"""The pages of the site that are made from the code: every setting, and what each preset changes."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any

from omegaconf import OmegaConf

from reverie.config.compose import compose_jobs
from reverie.config.overrides import describe
from reverie.config.population import PopulationTrainConfig
from reverie.config.resolve import GROUPS
from reverie.config.workflow import SCHEMAS, AnyTrainConfig, setting_types
from reverie.utils.errors import UserError

EXPERIMENTS = "experiment"
_TRIED = (-(10**7), 0, 1, 10**7)  # a value out of bounds is answered with them
_BOUNDS = re.compile(r"must be ((?:at least|at most|in [\[(]|[<>]).*?), got ")
_BY_DEVICE = re.compile(r"\$\{by_device:([^,]*),\s*([^}]*)\}")
_SETTINGS_HEAD = """\
---
search:
  boost: 2
---
# Configuration

This page lists every setting of a run. Pass settings to `reverie-train` as `key=value`. `make docs` builds
this page from the dataclasses in `src/`. [Presets](presets.md) change the defaults shown here.
`reverie-train experiment=<name> --cfg job` prints the values of a run.
"""
_PRESETS_HEAD = """\
# Presets

This page lists the values that each preset changes from the [defaults](settings.md). It is built from the
composed configurations. Select an experiment with `experiment=<name>`, and a choice of a group with
`<group>=<choice>`.
"""


def settings_page() -> str:
    """Return the page that has each setting once: name, type, default, bounds, meaning.

    Each setting has a heading of its own, so search returns it as a result and other pages link to it.
    """
    whole = AnyTrainConfig()
    lines, parts = [_SETTINGS_HEAD], {"": whole}
    parts |= {item.name: getattr(whole, item.name) for item in fields(whole) if _is_section(whole, item.name)}
    for name, part in parts.items():
        lines += [f"## {f'`{name}`' if name else 'The run'}", "", _of_section(name, part), ""]
        lines += _entries(name, part)
    return "\n".join(lines)


def presets_page() -> str:
    """Return the page with a table for each experiment and for each group of `configs/`."""
    lines = [_PRESETS_HEAD]
    for name in _choices(EXPERIMENTS):
        lines += [f"## `experiment={name}`", "", *_table({name: changed([f"experiment={name}"])}), ""]
    for group in GROUPS:
        columns = {}
        for choice in _choices(group):
            base = "erl_pendulum" if choice == "population" else "dreamer"
            found = changed([f"experiment={base}", f"{group}={choice}"])
            columns[choice] = {
                key: value for key, value in found.items() if key.split(".")[0] in GROUPS[group]
            }
        lines += [f"## `{group}=`", "", *_table(columns), ""]
    return "\n".join(lines)


def changed(arguments: list[str]) -> dict[str, str]:
    """Return the settings that a composed run has other than the defaults of its dataclasses, as text."""
    [composed] = compose_jobs(arguments)
    defaults = _flat(OmegaConf.structured(SCHEMAS[composed.workflow]))
    return {key: value for key, value in _flat(composed).items() if value != defaults[key]}


def _entries(section: str, part: Any) -> Iterator[str]:
    """Yield the entry of each setting in a section, nested sections included."""
    texts = documented(type(part))
    for item in fields(part):
        value, key = getattr(part, item.name), f"{section}.{item.name}" if section else item.name
        if is_dataclass(value):
            if section:
                yield from _entries(key, value)
        elif isinstance(value, dict):
            for name, each in value.items():
                yield _entry(f"{key}.{name}", each, "", texts[item.name])
        elif key in setting_types():
            yield _entry(key, value, _bounds(key, part, item.name), texts[item.name])


def _entry(key: str, value: Any, bounds: str, text: str) -> str:
    takes = describe(setting_types()[key])
    owners = [schema for schema in SCHEMAS.values() if key in setting_types(schema)]
    only = " Only for populations." if owners == [PopulationTrainConfig] and "." in key else ""
    facts = f"{takes}, default `{_shown(value)}`{f', {bounds}' if bounds else ''}"
    return f"### `{key}` {{#{key}}}\n\n{facts}\n{{ .setting }}\n\n{text}{only}\n"


def _bounds(key: str, part: Any, name: str) -> str:
    """Return what the section's own check says of values out of bounds."""
    value = getattr(part, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    found = {}
    for tried in _TRIED:
        try:
            replace(part, **{name: type(value)(tried)})
        except UserError as error:
            if str(error).startswith(f"{key} must be ") and (said := _BOUNDS.search(str(error))):
                found[said[1]] = None
    return ", ".join(found)


@cache
def documented(schema: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, those of its bases too."""
    texts: dict[str, str] = {}
    for owner in reversed(schema.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for before, after in zip(body.body, body.body[1:], strict=False):
            match before, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.split())
    return texts


def _of_section(name: str, part: Any) -> str:
    if not name:
        return "Every run uses these settings, regardless of its workflow."
    return " ".join((inspect.getdoc(type(part)) or "").split("\n\n")[0].split())


def _is_section(whole: Any, name: str) -> bool:
    return is_dataclass(getattr(whole, name)) and any(key.startswith(f"{name}.") for key in setting_types())


def _table(columns: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a table of settings by choice; an empty cell has the default."""
    keys = list(dict.fromkeys(key for column in columns.values() for key in column))
    if not keys:
        return [f"{' and '.join(f'`{name}`' for name in columns)}: the defaults."]
    head = [
        "| setting | " + " | ".join(f"`{name}`" for name in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    rows = ([column.get(key, "") for column in columns.values()] for key in keys)
    links = [f"[`{key}`](settings.md#{key})" for key in keys]
    return head + [f"| {link} | " + " | ".join(row) + " |" for link, row in zip(links, rows, strict=True)]


def _flat(config: Any, prefix: str = "") -> dict[str, str]:
    """Return all values, not resolved, as text by dotted key."""
    if not isinstance(config, dict):
        config = OmegaConf.to_container(config, resolve=False)
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = _BY_DEVICE.sub(r"\1, on CUDA \2", _shown(value))
    return found


def _shown(value: Any) -> str:
    """Return a value as a user types it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value.name if isinstance(value, Enum) else str(value)


def _choices(group: str) -> list[str]:
    folder = resources.files("reverie.configs") / group
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))
