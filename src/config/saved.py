"""Read a run's possibly untrusted `config.yaml` as plain data. Errors give the line number, not the text."""

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..utils.durable_io import corrupt_file_error, read_regular, reading
from ..utils.errors import UserError
from .overrides import describe, is_boolean_if_asked
from .schema import leaves
from .workflow import AnyTrainConfig, in_own_schema, setting_types

CONFIG_BYTES = 100_000
"""Maximum size of a configuration file. Files written by Reverie have about 6,000 bytes."""

_SEAL = "# checksum of the other lines:"
# The YAML reader's time grows with the square of the nesting depth.
_DEEPEST = 20
_OPENING = (yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken)
_CLOSING = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken)
_REFERRING = (yaml.AliasToken, yaml.AnchorToken)
_UNREADABLE = (yaml.YAMLError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def read_config(path: Path) -> DictConfig:
    """Return all settings of a run: the file's values over the defaults. Their relations are not checked.

    Settings of the other workflow, which version 0.2 also saved, are ignored.

    Raises:
        UserError: If the path is not a regular file, or the file is too large, is not YAML with plain values,
            or contains unknown settings.
    """
    with reading(path):
        text = read_regular(path, CONFIG_BYTES).decode()
    if _SEAL in text and text != _sealed(_unsealed(text)):
        repair = "Restore it from a copy, and change settings with resume=<run> key=value"
        keep = f"To keep an edit, delete the two lines that start with `{_SEAL}`"
        raise UserError(f"{path} was damaged or edited: its checksum differs. {repair}. {keep}.")
    try:
        _require_plain(text, path)
        loaded = OmegaConf.load(io.StringIO(text))
        if missing := sorted(OmegaConf.missing_keys(loaded)):
            raise _wrong(path, _mark_of(text, missing[0].split(".")), f"sets {missing[0]} to {MISSING}")
        saved = OmegaConf.to_container(loaded, resolve=False)
        if isinstance(saved, dict):
            if isinstance(env := saved.get("env"), dict):
                # Older runs were saved without this setting.
                env.setdefault("scale_bytes", False)
            if isinstance(training := saved.get("training"), dict):
                # Older runs have this setting, which was removed.
                training.pop("probe_interval", None)
        config = OmegaConf.merge(OmegaConf.structured(AnyTrainConfig), saved)
        for key, value in leaves(saved) if isinstance(saved, dict) else ():
            if not is_boolean_if_asked(setting_types().get(key), value):
                raise _of_another_type(path, text, key)
    except UserError:
        raise
    except yaml.MarkedYAMLError as error:
        raise _wrong(path, error.problem_mark, "is not YAML", text) from error
    except OmegaConfBaseException as error:
        raise _of_another_type(path, text, error.full_key or "") from error
    except _UNREADABLE as error:
        raise corrupt_file_error(path, type(error).__name__) from error
    if not saved:
        raise UserError(f"{path} is empty. Restore it from a copy, or start a new run.")
    assert isinstance(config, DictConfig)
    return in_own_schema(config)


def saved_text(config: DictConfig) -> bytes:
    """Return the contents of `config.yaml`: the settings between two identical comments with their checksum.

    If the file loses its beginning or its end, one of the two comments remains.
    """
    return _sealed(OmegaConf.to_yaml(config)).encode()


def _sealed(text: str) -> str:
    seal = f"{_SEAL} {hashlib.sha256(text.encode()).hexdigest()}\n"
    return seal + text + seal


def _unsealed(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(_SEAL))


def _of_another_type(path: Path, text: str, key: str) -> UserError:
    """Return the error for a key with a value of the wrong type, or for a key that is not a setting."""
    kind = setting_types().get(key)
    reason = f"sets {key}, which must be {describe(kind)}" if kind else "sets an unknown key"
    return _wrong(path, _mark_of(text, key.split(".")), reason)


def _require_plain(text: str, path: Path) -> None:
    """Raise a `UserError` for YAML aliases, interpolations and deep nesting."""
    depth = 0
    for token in yaml.scan(text):
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if isinstance(token, _REFERRING):
            raise _wrong(path, token.start_mark, "contains a YAML alias")
        if isinstance(token, yaml.ScalarToken) and "${" in token.value:
            raise _wrong(path, token.start_mark, "contains an interpolation, ${...}")
        if depth > _DEEPEST:
            raise _wrong(path, token.start_mark, "is nested too deep")


def _mark_of(text: str, keys: Sequence[str]) -> yaml.Mark | None:
    """Return the position of a nested key, or of its innermost parent that the text contains."""
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
    # If text is missing at the end of a file, PyYAML's mark lies after the last line.
    if text is not None:
        line = min(line, len(text.splitlines()))
    where = f"Line {line:,} of {path}" if mark else str(path)
    allowed = "A run's configuration may contain only settings with plain values"
    return UserError(f"{where} {reason}. {allowed}. Restore it from a copy, or repair that line.")
