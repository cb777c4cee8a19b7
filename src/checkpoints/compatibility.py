"""The settings a checkpoint was made with, which a resumed run must share."""

import json
from enum import Enum
from pathlib import Path
from typing import Any

from ..config.schema import TrainConfig, leaves
from ..utils.durable_io import reading
from ..utils.errors import UserError
from .checkpoint import Checkpoint, latest_checkpoint
from .run_folder import CONFIG_FILE, FIXED_BY_CHECKPOINT, RESUMABLE_EXCEPTIONS

SETTINGS_KEY = "made_with"
"""Where the state of the loop has the settings."""


def checkpoint_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that a checkpoint cannot do without, by their keys, as JSON has them."""
    return {
        key: value.value if isinstance(value, Enum) else value
        for key, value in leaves(config)
        if (key in FIXED_BY_CHECKPOINT or key.partition(".")[0] in FIXED_BY_CHECKPOINT)
        and key not in RESUMABLE_EXCEPTIONS
    }


def checkpoint_of(config: TrainConfig, run_dir: Path) -> Checkpoint:
    """Return the newest whole checkpoint of a run.

    Raises:
        UserError: If there is none, or it was made with other settings than the run's: files were mixed up.
    """
    checkpoint = latest_checkpoint(run_dir)
    asked = json.loads(json.dumps(checkpoint_settings(config)))
    with reading(checkpoint.state_path):
        saved = dict(checkpoint.state()[SETTINGS_KEY])
        keys = sorted(saved.keys() | asked.keys())
    for key in keys:
        if saved.get(key) != asked.get(key):
            raise UserError(
                f"{checkpoint.folder} was made with {key}={saved.get(key)}, but {run_dir / CONFIG_FILE} says "
                f"{key}={asked.get(key)}. Put the {CONFIG_FILE} of that run back, or its checkpoints."
            )
    return checkpoint
