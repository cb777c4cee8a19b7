"""Keep old names of settings working for one version, on the command line and in a saved `config.yaml`."""

import logging
from functools import cache
from typing import Any

_LOG = logging.getLogger(__name__)

RENAMED = {
    "checkpoint.mirror_wait": "checkpoint.mirror_timeout",
    "world_model.kl.rep_scale": "world_model.kl.representation_scale",
    "training.max_updates_owed": "training.max_updates_per_step",
    "training.max_nonfinite": "training.max_consecutive_nonfinite",
    "td3.target_rate": "td3.tau",
}
"""New keys by the old ones of version 0.2."""


def with_new_name(override: str) -> str:
    """Return an override with the key that its setting has now."""
    key = override.partition("=")[0].lstrip("+~")
    if key not in RENAMED:
        return override
    note_new_name(key)
    return override.replace(key, RENAMED[key], 1)


def rename_saved(values: dict[str, Any]) -> None:
    """Give the settings of a saved run their new keys, in place; a new key that is there counts."""
    for old, new in RENAMED.items():
        *path, name = old.split(".")
        section: Any = values
        for part in path:
            section = section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict) and name in section:
            section.setdefault(new.rpartition(".")[2], section.pop(name))
            note_new_name(old)


@cache
def note_new_name(old: str) -> None:
    """Log, once, what the new name is."""
    _LOG.warning("%s is now %s; the next version refuses the old name", old, RENAMED[old])
