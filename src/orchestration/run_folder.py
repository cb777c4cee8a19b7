"""The folder of a run: its name, its `config.yaml`, and reading that back."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..utils.errors import UserError, did_you_mean
from .config import TrainConfig, typed
from .overrides import check_setting, explain

CONFIG_FILE = "config.yaml"
EXPERIMENTS = Path("experiments")
FIXED = ("name", "seed", "run_dir", "resume", "env", "model", "buffer")
"""What a checkpoint is made of: a resumed run cannot change it."""
FREE = ("buffer.memory_budget_gib",)
"""Exceptions to `FIXED`."""


def check_run_folder(config: TrainConfig) -> None:
    """Check that a new run would not write over an old one.

    Raises:
        UserError: If `run_dir` is a file, or already holds a run that is not the one to resume.
    """
    if config.run_dir is None or config.resume is not None:
        return
    folder = Path(config.run_dir)
    if (folder / CONFIG_FILE).exists():
        raise UserError(
            f"run_dir={config.run_dir} already holds a run. Go on with it by resume={config.run_dir}, "
            "or choose another folder."
        )
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"run_dir={config.run_dir} cannot be a folder: {existing} is a file.")


def prepare_run_folder(config: TrainConfig) -> Path:
    """Create the folder of a run, write `config.yaml` into it, and return it; `config.run_dir` is set to it.

    Called once every check has passed. A resumed run finds its folder and writes its new configuration there.

    Raises:
        UserError: If the folder cannot be written.
    """
    folder = Path(config.run_dir) if config.run_dir else _new_folder(config.name, datetime.now())
    config.run_dir = str(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(OmegaConf.structured(config), folder / CONFIG_FILE)
    except OSError as error:
        raise UserError(f"run_dir={folder} cannot be written: {error.strerror}.") from error
    return folder


def load_run(folder: str, changes: Iterable[Override] = (), fixed: tuple[str, ...] = FIXED) -> TrainConfig:
    """Return the configuration of the run in `folder` with some values changed.

    Args:
        folder: Folder of the run; it may have moved since.
        changes: Parsed overrides of single settings.
        fixed: Settings and sections that may not be changed.

    Raises:
        UserError: If there is no run, or a change is not a setting, not of its type, or fixed.
    """
    config = _read(folder)
    for change in changes:
        _check_change(change, fixed)
        OmegaConf.update(config, change.key_or_group, change.value())
    config.run_dir = folder
    return typed(config)


def resume_run(folder: str, changes: Iterable[Override]) -> tuple[TrainConfig, list[str]]:
    """Return the configuration with which the run in `folder` goes on, and its changes in words.

    Raises:
        UserError: As `load_run`.
    """
    changes = list(changes)
    before, after = load_run(folder), load_run(folder, changes)
    after.resume = folder
    keys = dict.fromkeys(change.key_or_group for change in changes)
    differences = [f"{key} {_shown(before, key)} -> {_shown(after, key)}" for key in keys]
    return after, [f"resuming {folder}", *differences]


def _new_folder(name: str, now: datetime) -> Path:
    """Return `experiments/<name>-<time>`, with `-2`, `-3`, ... behind it where that exists."""
    first = EXPERIMENTS / f"{name}-{now:%Y%m%d_%H%M%S}"
    folder, count = first, 1
    while folder.exists():
        count += 1
        folder = first.with_name(f"{first.name}-{count}")
    return folder


def _read(folder: str) -> DictConfig:
    path = Path(folder)
    if not path.is_dir():
        beside = [str(path.parent / other.name) for other in path.parent.glob("*/")]
        raise UserError(f"{folder} is not a folder.{did_you_mean(folder, beside)}")
    if not (path / CONFIG_FILE).is_file():
        raise UserError(f"{folder} holds no run: it has no {CONFIG_FILE}.")
    try:
        config = OmegaConf.merge(OmegaConf.structured(TrainConfig), OmegaConf.load(path / CONFIG_FILE))
    except (OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path / CONFIG_FILE} cannot be read: {explain(error)}") from error
    assert isinstance(config, DictConfig)
    return config


def _check_change(change: Override, fixed: tuple[str, ...]) -> None:
    key = change.key_or_group
    if change.is_delete() or change.is_add() or isinstance(change.value(), dict):
        raise UserError(f"{change.input_line}: a saved run takes only changes of the form key=value.")
    if key in ("experiment", "workflow") or isinstance(OmegaConf.select(OmegaConf.structured(TrainConfig), key), DictConfig):
        raise UserError(
            f"{change.input_line}: a saved run keeps its groups and sections; change single settings, "
            "as in training.total_timesteps=200000."
        )
    check_setting(change)
    if key not in FREE and any(key == name or key.startswith(f"{name}.") for name in fixed):
        raise UserError(
            f"{change.input_line}: {key} cannot change, the checkpoint was made with it. Leave it out, "
            "or start a new run."
        )


def _shown(config: TrainConfig, key: str) -> str:
    value = OmegaConf.select(OmegaConf.structured(config), key)
    return str(getattr(value, "value", value))
