"""Read the `config.yaml` of a run, maybe a stranger's: plain data; an error gives its line, not its text."""

import io
from collections.abc import Sequence
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..utils.durable_io import corrupt_file_error, read_regular, reading
from ..utils.errors import UserError
from .overrides import describe, rename_saved
from .workflow import AnyTrainConfig, in_own_schema, setting_types

CONFIG_BYTES = 100_000
"""Largest size of a configuration; one of Reverie's has 6,000 bytes."""

_DEEPEST = 20  # the time of the YAML reader grows with the square of it
_OPENING = (yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken)
_CLOSING = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken)
_REFERRING = (yaml.AliasToken, yaml.AnchorToken)
_UNREADABLE = (yaml.YAMLError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def read_config(path: Path) -> DictConfig:
    """Return all settings of a run, those of a file in the place of the defaults; relations are not checked.

    Settings of the other workflow, which version 0.2 also saved, are left out.

    Raises:
        UserError: If it is no regular file, too large, no YAML of plain values, or holds what is no setting.
    """
    with reading(path):
        text = read_regular(path, CONFIG_BYTES).decode()
    try:
        _require_plain(text, path)
        saved = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)
        if isinstance(saved, dict):
            rename_saved(saved)  # pyright: ignore[reportArgumentType]
        config = OmegaConf.merge(OmegaConf.structured(AnyTrainConfig), saved)
    except UserError:
        raise
    except yaml.MarkedYAMLError as error:
        raise _wrong(path, error.problem_mark, "is no YAML", text) from error
    except OmegaConfBaseException as error:
        key = error.full_key or ""
        kind = setting_types().get(key)
        reason = f"sets {key}, which must be {describe(kind)}" if kind else "sets what is no setting"
        raise _wrong(path, _mark_of(text, key.split(".")), reason) from error
    except _UNREADABLE as error:
        raise corrupt_file_error(path, type(error).__name__) from error
    if not saved:
        raise UserError(f"{path} is empty. Put it back from a copy, or start a new run.")
    assert isinstance(config, DictConfig)
    return in_own_schema(config)


def _require_plain(text: str, path: Path) -> None:
    """Refuse what would be resolved, or grow, when it is read."""
    depth = 0
    for token in yaml.scan(text):
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if isinstance(token, _REFERRING):
            raise _wrong(path, token.start_mark, "holds an alias of YAML")
        if isinstance(token, yaml.ScalarToken) and "${" in token.value:
            raise _wrong(path, token.start_mark, "holds an interpolation, ${...}")
        if depth > _DEEPEST:
            raise _wrong(path, token.start_mark, "is nested too deep")


def _mark_of(text: str, keys: Sequence[str]) -> yaml.Mark | None:
    """Return where a key stands, as far as it is found."""
    node, mark = yaml.compose(text, Loader=yaml.SafeLoader), None
    for name in keys:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        found = [(key, value) for key, value in pairs if key.value == name]
        if not found:
            break
        mark, node = found[-1][0].start_mark, found[-1][1]
    return mark


def _wrong(path: Path, mark: yaml.Mark | None, reason: str, text: str | None = None) -> UserError:
    line = mark.line + 1 if mark else 0
    if text is not None:  # what is missing at the end of a file is marked behind its last line
        line = min(line, len(text.splitlines()))
    where = f"Line {line:,} of {path}" if mark else str(path)
    held = "The configuration of a run holds settings with plain values alone"
    return UserError(f"{where} {reason}. {held}: put it back from a copy, or repair that line.")
