"""Create and lock run folders, read and write `config.yaml`, and find the matching checkpoint."""

import errno
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from difflib import get_close_matches
from enum import Enum
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from ..buffers import ReplayStorage
from ..config.dreamer import DreamerTrainConfig
from ..config.overrides import as_typed, check_setting, parse
from ..config.population import Engine
from ..config.resolve import multiplies_bfloat16, typed
from ..config.saved import read_config, saved_text
from ..config.schema import Compile, Device, Precision, TrainConfig, actual_device, leaves
from ..config.workflow import require_key, setting_types
from ..envs.registered import find_maker, is_maker
from ..utils.components import own_classes
from ..utils.durable_io import UNFINISHED, reading, replace_file
from ..utils.errors import UserError
from ..utils.logging.console import LOG_FILE
from .checkpoint import (
    CHECKPOINTS,
    Checkpoint,
    Verify,
    is_stored_result,
    latest_checkpoint,
    list_checkpoints,
)
from .pretrained import CONFIG_FILE as CONFIG_FILE
from .pretrained import holds_networks_alone, resolve_pretrained
from .trust import require_trust

LINEAGE_FILE, LOCK_FILE = "lineage.jsonl", ".lock"
MOVED = "the folder was moved or deleted while the run wrote to it"
_BEFORE_CONFIG = {LOCK_FILE, LOG_FILE, "ranks"}
EXPERIMENTS = Path("experiments")
_EXIT_SECONDS = 10
_LOG = logging.getLogger(__name__)
NETWORKS = (
    "model",
    "world_model.objective",
    "world_model.decoder",
    "world_model.barlow.dims",
    "world_model.harmony",
)
"""Settings that determine the networks and their sizes."""

COLLECTORS = "collect.collectors"
FIXED_BY_CHECKPOINT = ("seed", "env", *NETWORKS, "buffer", COLLECTORS, "population.size", "td3.hidden_units")
"""Settings that must match the checkpoint."""

FIXED = ("name", "workflow", "run_dir", "resume", *FIXED_BY_CHECKPOINT)
"""Settings that a resumed run cannot change."""

RESUMABLE_EXCEPTIONS = (
    "buffer.memory_budget_gib",
    "buffer.storage",
    "buffer.compressed",
    "buffer.latent_every",
    "buffer.newest_share",
)
GROUP = "buffer"
"""The only group that a resumed run may select. Only its settings that may change are applied."""

SETTINGS_KEY = "made_with"
"""Key of `checkpoint_settings` in the training loop's state."""


def check_run_folder(config: TrainConfig) -> None:
    """Raise `UserError` if a new run's `run_dir` is in use or cannot be created."""
    if config.run_dir is not None and config.resume is None:
        require_free(Path(config.run_dir))


def require_free(folder: Path) -> None:
    """Raise `UserError` if a new run's folder cannot be created or is not empty."""
    _check_name(folder, f"run_dir={folder}")
    require_no_run(folder)
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"run_dir={folder} cannot be created: {existing} is a file. Choose another folder.")
    if existing == folder and not _is_free(folder):
        raise UserError(
            f"run_dir={folder} is not empty and does not contain a run. Choose a new folder, e.g. "
            f"run_dir={folder / 'run'}."
        )


def require_no_run(folder: Path) -> None:
    """Raise `UserError` if a folder contains a run or networks."""
    if any(os.path.lexists(folder / name) for name in (CONFIG_FILE, CHECKPOINTS)):
        found, repair = "a run", f"Continue it with resume={folder}, or choose"
        if holds_networks_alone(str(folder)):
            found, repair = "networks", "Choose"
        raise UserError(f"run_dir={folder} already contains {found}. {repair} another folder.")


def existing_part(config: TrainConfig) -> Path:
    """Return the absolute path of a new run's folder, or of the nearest parent that exists already."""
    folder = Path(config.run_dir or EXPERIMENTS).absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def _is_free(folder: Path) -> bool:
    """Return whether a folder is empty, or contains only the first files of a run that failed to start."""
    with _writing(folder):
        found = {path.name for path in folder.iterdir()}
    begun = {name for name in found if name.endswith(UNFINISHED)}
    return not found or (LOCK_FILE in found and found - begun <= _BEFORE_CONFIG)


def create_run_folder(config: TrainConfig) -> Path:
    """Create a new run's folder, or find a resumed run's. Set `config.run_dir` to it and return it.

    `run_dir` defaults to `experiments/<name>-<time>`, with a suffix `-2`, `-3`, ... if that folder exists.
    """
    first = EXPERIMENTS / f"{config.name}-{datetime.now():%Y%m%d_%H%M%S}"
    later = (first.with_name(f"{first.name}-{number}") for number in count(2))
    free = (path for path in chain([first], later) if not path.exists())
    folder = Path(config.run_dir) if config.run_dir else next(free)
    config.run_dir = str(folder)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def discard_start(folder: Path, existing: Path) -> None:
    """Remove the files of a run that was refused at its start, and its new folders inside `existing`."""
    # Other ranks may be removing their parts of the folder. Without its lock, another process may use it.
    with suppress(OSError):
        for path in sorted(folder.iterdir(), key=lambda each: each.name == LOCK_FILE):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        for new in takewhile(existing.__ne__, (folder, *folder.parents)):
            new.rmdir()


def require_run_folder(folder: Path) -> None:
    """Raise `FileNotFoundError` if a run folder was moved, because further writes would split the run."""
    if not (folder / LOCK_FILE).exists():
        raise FileNotFoundError(errno.ENOENT, MOVED, str(folder))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the run folder. The lock is released however this process exits.

    Raises:
        UserError: If another process keeps the lock for longer than processes of a killed run take to exit.
    """
    lock, in_use = FileLock(folder / LOCK_FILE), f"run_dir={folder} is in use by another process"
    # `Timeout` is an `OSError`, so it must be caught before `_writing` handles it.
    with _writing(folder):
        try:
            with suppress(Timeout):
                lock.acquire(timeout=0)
            if not lock.is_locked:
                _LOG.warning("%s; waiting up to %d s for it to exit", in_use, _EXIT_SECONDS)
                lock.acquire(timeout=_EXIT_SECONDS)
        except Timeout as error:
            raise UserError(f"{in_use}. Wait until it exits, or choose another folder.") from error
    try:
        yield
    finally:
        lock.release()


def save_config(config: TrainConfig, folder: Path) -> None:
    """Write `config.yaml` atomically."""
    replace_file(folder / CONFIG_FILE, [saved_text(OmegaConf.structured(config))])


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"run_dir={folder} cannot be written: {error.strerror}.") from error


def load_run(
    folder: str,
    changes: Iterable[Override] = (),
    device: Device | None = None,
    fixed: Iterable[str] = FIXED,
    key: str = "run",
    trust: bool = False,
) -> TrainConfig:
    """Return the configuration of the (possibly moved) run in `folder`, with some changes applied.

    On a device other than the run's, unsupported features (bfloat16, replay in GPU memory) are disabled.
    `key` precedes the folder in messages. Raises `UserError` without a run, or if a change is invalid or not
    allowed, or if a copied run names classes without `trust`. Its own setting `trust` is ignored.
    """
    config = _read(folder, key)
    config.run_dir = folder
    if "trust" in config:
        config.trust = trust
    # If a device is given, the agent only acts in this process.
    if device is not None and "engine" in config:
        config.engine = Engine.local
    if device is not None and "collect" in config:
        config.collect.collectors, config.collect.address = 0, None
    if device is not None and actual_device(device) is not config.device:
        config.device, config.compile = device, Compile.auto
        if config.buffer.storage is ReplayStorage.cuda:
            config.buffer.storage = ReplayStorage.ram
    asked = _single_settings(changes, config, fixed)
    for change in asked:
        check_change(change, fixed)
        require_key(change.key_or_group, config)
        OmegaConf.update(config, change.key_or_group, change.value())
    is_possible = multiplies_bfloat16(actual_device(config.device))
    if config.precision is Precision.bfloat16 and not is_possible:
        if all(change.key_or_group != "precision" for change in asked):
            config.precision = Precision.float32
    result = typed(config)
    if isinstance(result, DreamerTrainConfig) and not result.trust:
        typed_keys = {change.key_or_group for change in asked}
        classes = [each for each in own_classes(result) if each.partition("=")[0] not in typed_keys]
        require_trust(classes, Path(folder), f"{key}={folder}" if key else folder)
    return result


def _single_settings(
    changes: Iterable[Override], config: DictConfig, fixed: Iterable[str] = FIXED
) -> list[Override]:
    """Replace a choice of the `buffer` group with its settings that may change, and put these first."""
    singles, of_group = [], []
    for change in changes:
        if change.key_or_group != GROUP:
            singles.append(change)
            continue
        check_change(change, fixed)
        # Only this rare change needs the composition.
        from ..config.compose import compose_jobs

        [job] = compose_jobs([f"workflow={config.workflow.value}", str(change.input_line)])
        containers = (OmegaConf.to_container(each[GROUP], enum_to_str=True) for each in (job, config))
        chosen, saved = (dict(leaves(each, f"{GROUP}.")) for each in containers)
        of_group += [
            f"{key}={json.dumps(value)}"
            for key, value in chosen.items()
            if value != saved.get(key) and not _is_in(key, fixed)
        ]
    return [*parse(of_group), *singles]


def resume_run(folder: str, changes: Iterable[Override]) -> tuple[TrainConfig, list[str]]:
    """Return the configuration for resuming the run in `folder`, and a description of each change."""
    # The saved configuration is not validated, because its device may be missing here.
    before = _read(folder, "resume")
    # A stored result without checkpoints must not restart from scratch, so this raises an error.
    if is_stored_result(Path(folder)):
        latest_checkpoint(Path(folder))
    changes = _single_settings(changes, before)
    config = load_run(folder, changes, key="resume")
    config.resume = folder
    _require_longer(folder, before, config)
    after = OmegaConf.structured(config)
    sentences = [f"resuming {folder}"]
    for key in dict.fromkeys([*(change.key_or_group for change in changes), "precision"]):
        values = [OmegaConf.select(each, key) for each in (before, after)]
        old, new = (str(getattr(value, "value", value)) for value in values)
        if old != new:
            sentences.append(f"{key} {old} -> {new}")
    return config, sentences


def _require_longer(folder: str, before: DictConfig, after: TrainConfig) -> None:
    """Raise `UserError` if the run in `folder` has already passed the new length."""
    asked, steps = after.training.total_timesteps, [each.step for each in list_checkpoints(Path(folder))]
    if steps and asked < min(steps[-1], before.training.total_timesteps):
        past = f"{folder} has a checkpoint of step {steps[-1]:,}"
        raise UserError(f"training.total_timesteps={asked:,} is already reached: {past}. Raise or omit it.")


def unknown_maker_of(folder: str) -> str | None:
    """Return the id of a run's environment if it is a class or function that is not importable here."""
    if not os.path.isfile(Path(folder) / CONFIG_FILE):
        return None
    env_id = _read(folder, "resume").env.id
    return env_id if is_maker(env_id) and find_maker(env_id) else None


def begin_with(name: str, changes: Iterable[Override]) -> tuple[TrainConfig, list[str]]:
    """Return a config for a new run that starts from pretrained weights, and a notice.

    Pretrained weights include neither replay nor optimizer state, so all settings except the networks' may
    change.
    """
    changes = list(changes)
    devices = [Device(change.value()) for change in changes if change.key_or_group == "device"]
    device = (devices or [Device.auto])[-1]
    is_placed = any(change.key_or_group == "run_dir" for change in changes)
    config = load_run(
        resolve_pretrained(name), changes, device, fixed=("workflow", "resume", *NETWORKS), key="resume"
    )
    if not isinstance(config, DreamerTrainConfig):
        raise UserError(f"{name} is a population, but only Dreamer networks can be trained further.")
    config.run_dir, config.model.init = config.run_dir if is_placed else None, name
    config.resume = None
    # The number of threads was chosen for the machine on which the networks were trained.
    if all(change.key_or_group != "threads" for change in changes):
        config.threads = None
    return config, [f"new run with the networks and settings of {name}; replay and optimizers start empty"]


def _check_name(folder: Path, asked: str) -> None:
    """Raise `UserError` if the file system does not support a name."""
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    try:
        for part in (folder, *(existing / name for name in folder.parts)):
            with suppress(FileNotFoundError, NotADirectoryError):
                part.stat()
    except OSError as error:
        raise UserError(f"{asked} is not a valid path: {error.strerror}.") from error


def _read(folder: str, key: str) -> DictConfig:
    path = Path(folder)
    asked = f"{key}={folder}" if key else folder
    example = f"{key}=experiments/<run>" if key else 'reverie.load("experiments/<run>")'
    repair = f" Pass the folder of a run, e.g. {example}."
    _check_name(path, asked)
    if not path.is_dir():
        runs = {each.parent.name: each.parent for each in path.parent.glob(f"*/{CONFIG_FILE}")}
        near = [runs[name] for name in get_close_matches(path.name, runs, n=1)]
        # The path may be a file or folder inside a run folder.
        if (path.parent / CONFIG_FILE).is_file():
            near = [path.parent]
        raise UserError(f"{asked} is not a folder." + (f" Did you mean `{near[0]}`?" if near else repair))
    if not os.path.lexists(path / CONFIG_FILE):
        raise UserError(f"{asked} is not a run: it has no {CONFIG_FILE}.{repair}")
    try:
        return read_config(path / CONFIG_FILE)
    except UserError as error:
        raise UserError(f"{asked}: {error}" if key else str(error)) from error


def check_change(change: Override, fixed: Iterable[str] = FIXED) -> None:
    """Raise `UserError` if a resumed run does not allow a change."""
    key = change.key_or_group
    if change.is_delete() or change.is_add() or isinstance(change.value(), dict):
        raise UserError(f"{change.input_line}: a saved run accepts only changes of the form key=value.")
    # The run determines which settings a choice of this group changes.
    if key == GROUP:
        return
    sections = {name.partition(".")[0] for name in setting_types() if "." in name}
    if key in ("experiment", "workflow", *sections):
        raise UserError(
            f"{change.input_line}: a saved run keeps its groups and sections. Change individual settings, "
            "e.g. training.total_timesteps=200000."
        )
    check_setting(change)
    if _is_in(key, fixed):
        raise UserError(
            f"{as_typed(change)}: {key} cannot change, because the checkpoint depends on it. "
            "Omit it, or start a new run."
        )


def _is_in(key: str, fixed: Iterable[str]) -> bool:
    return key not in RESUMABLE_EXCEPTIONS and any(f"{key}.".startswith(f"{name}.") for name in fixed)


def checkpoint_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that must match the checkpoint as JSON values by key."""
    return {
        key: value.value if isinstance(value, Enum) else value
        for key, value in leaves(config)
        if _is_in(key, FIXED_BY_CHECKPOINT)
    }


def checkpoint_of(
    config: TrainConfig, run_dir: Path, verify: Verify = Checkpoint.verify, only_best: bool = False
) -> Checkpoint:
    """Return a run's newest (best) intact checkpoint. Raise `UserError` without one, or if another run's."""
    checkpoint = latest_checkpoint(run_dir, verify, only_best)
    asked = json.loads(json.dumps(checkpoint_settings(config)))
    with reading(checkpoint.state_path):
        saved = dict(checkpoint.state()[SETTINGS_KEY])
        # Settings added after the checkpoint was saved are not compared.
        keys = sorted(saved)
    # Collectors are disabled if the agent only acts in this process.
    if not asked.get(COLLECTORS):
        keys = [key for key in keys if key != COLLECTORS]
    for key in keys:
        if saved[key] != asked.get(key):
            raise UserError(
                f"{checkpoint.folder} was saved with {key}={saved[key]}, but {run_dir / CONFIG_FILE} has "
                f"{key}={asked.get(key)}. Restore the {CONFIG_FILE} of that run, or its checkpoints."
            )
    return checkpoint
