"""Atomic checkpoints: each folder is created with a single rename and lists all its files with checksums.

    <run>/checkpoints/step_000002000/   manifest.json and the files of only this checkpoint
    <run>/checkpoints/replay/           replay files shared by several checkpoints, each written once

Files are never overwritten, so a failure while writing one checkpoint cannot damage the others. Pickle is not
used, because loading it could execute code. JSON and safetensors cannot.
"""

import hashlib
import json
import logging
import os
import platform
import re
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import __version__
from ..buffers import REPLAY_FILES
from ..utils import durable_io
from ..utils.durable_io import MALFORMED, UNFINISHED, Damaged, FileRecord
from ..utils.errors import UserError, printable
from ..utils.logging.json_lines import COMPRESSED, METRICS_FILE
from ..utils.state_files import check_finite, load_state, save_state

# Loading an agent must not import the replay buffer.
if TYPE_CHECKING:
    from ..buffers import EpisodeReplayBuffer
    from ..workflows import Agent

_LOG = logging.getLogger(__name__)
CHECKPOINTS, SHARED_FOLDER = "checkpoints", "replay"
MANIFEST, MODEL, STATE = "manifest.json", "model", "state"
FORMAT = 3
_REPLACED = "replaced_"
_NAME = re.compile(rf"step_(\d{{9,18}})|{_REPLACED}step_(\d{{9,18}}){re.escape(UNFINISHED)}")
_BEGUN = re.compile(rf"(?:{_REPLACED})?step_\d{{9,18}}{re.escape(UNFINISHED)}")
_SHARED = re.compile(r"(env\d{3,}_record|latents_)\d{9,}(_\d+)?\.safetensors")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint on disk."""

    folder: Path
    step: int

    @property
    def state_path(self) -> Path:
        """File that errors about the training loop's state refer to."""
        return self.folder / f"{STATE}.json"

    def state(self) -> dict[str, Any]:
        """Return the training loop's state, with tuples converted to lists."""
        return load_state(self.folder, STATE)

    def model(self, device: torch.device) -> dict[str, Any]:
        """Return the workflow's state with its tensors on `device`."""
        return load_state(self.folder, MODEL, device)

    def restore_workflow(self, workflow: "Agent") -> None:
        """Copy the saved state into a workflow. Raise `UserError` if it is incompatible or not finite."""
        state = self.model(workflow.device)
        try:
            check_finite(state)
        except ValueError as error:
            repair = f"Move {self.folder} away to use an earlier checkpoint, or start a new run"
            raise UserError(f"{self.folder} cannot be used: {error}. {repair}.") from None
        with durable_io.reading(self.folder / f"{MODEL}.safetensors"):
            workflow.load_state_dict(state)

    def restore_replay(self, replay: "EpisodeReplayBuffer") -> None:
        """Load the saved records into `replay`. Later saves of `replay` are incremental."""
        replay.load(self.folder, self.folder.parent / SHARED_FOLDER)

    def manifest(self) -> dict[str, Any]:
        """Return the manifest. Raise `Damaged` if it is corrupt, or `UserError` if its format differs."""
        path = self.folder / MANIFEST
        try:
            manifest = durable_io.parse_json(durable_io.read_regular(path))
            checksum = manifest.pop("checksum")
        except FileNotFoundError as error:
            # Format 1 had this file but no manifest.
            if (self.folder / "loop.json").exists():
                raise UserError(
                    f"{self.folder} uses format 1 of an older Reverie, which does not support exact resume. "
                    f"Reverie {__version__} reads format {FORMAT}. Start a new run."
                ) from error
            raise Damaged(f"{path} is missing") from error
        except OSError as error:
            raise Damaged(f"{path} cannot be read: {error.strerror}") from error
        except MALFORMED as error:
            raise Damaged(f"{path} is corrupt: it is not a manifest") from error
        if checksum != _checksum(manifest):
            raise Damaged(f"{path} is corrupt: its checksum does not match")
        if not _is_well_formed(manifest, self.step):
            raise Damaged(f"{path} is corrupt: it is not the manifest of step {self.step}")
        if manifest["format"] != FORMAT:
            raise UserError(
                f"{self.folder} has format {manifest['format']}, but this Reverie {__version__} reads format "
                f"{FORMAT}. Use Reverie {printable(manifest['reverie'])}, which wrote it."
            )
        return manifest

    def files(self) -> dict[str, tuple[Path, FileRecord]]:
        """Return all files except the manifest, by name in `checkpoints/`. See `manifest` for errors."""
        found: dict[str, tuple[Path, FileRecord]] = {}
        for name, record in self.manifest()["files"].items():
            folder, _, file = name.rpartition("/")
            is_shared = folder == SHARED_FOLDER
            # Unshared files are looked up in `self.folder`, because the checkpoint may have been moved aside.
            path = (self.folder.parent / folder if is_shared else self.folder) / file
            found[name] = path, FileRecord(record["bytes"], record["sha256"])
        return found

    def verify(self) -> None:
        """Check the size and checksum of every file. Each file is read once. See `manifest` for errors."""
        for path, record in self.files().values():
            durable_io.verify_file(path, record)


Verify = Callable[[Checkpoint], None]
"""Function that checks a checkpoint and raises the same errors as `Checkpoint.verify`."""


def save_checkpoint(
    run_dir: Path,
    step: int,
    state: dict[str, Any],
    model: dict[str, Any],
    replay: "EpisodeReplayBuffer",
    keep: int,
    best: bool = False,
    needed: Collection[int] = (),
) -> Checkpoint:
    """Write a checkpoint, then delete obsolete checkpoints and unfinished files from crashed saves.

    The newest `keep` checkpoints up to this step, the last one saved as `best` and the checkpoints of the
    `needed` steps are kept. If saving fails, nothing is changed.

    Raises:
        OSError: If the disk is full or fails.
        TypeError: If `state` (the training loop's) or `model` (the workflow's) has a value of an unsupported
            type.

    Each save writes `model`, `state`, the open chunks, the new replay data and 0.3 kB per shared file, and
    uses less than 64 MB of memory.
    """
    root = run_dir / CHECKPOINTS
    folder = root / f"step_{step:09d}"
    unfinished = folder.with_name(folder.name + UNFINISHED)
    shared = root / SHARED_FOLDER
    if not shared.is_dir():
        root.mkdir(exist_ok=True)
        shared.mkdir()
        durable_io.fsync_dir(run_dir)
    _clean(root)
    try:
        unfinished.mkdir()
        own = save_state(unfinished, MODEL, model) | save_state(unfinished, STATE, state)
        saved = replay.save(unfinished, shared)
        files = {f"{folder.name}/{name}": record for name, record in (own | saved.own).items()}
        files |= {f"{SHARED_FOLDER}/{name}": record for name, record in saved.shared.items()}
        _write_manifest(unfinished / MANIFEST, step, best, files)
        durable_io.fsync_dir(shared)
        durable_io.fsync_dir(unfinished)
        # An older checkpoint of this step is deleted only after the new checkpoint has been renamed.
        if folder.exists():
            os.replace(folder, root / f"{_REPLACED}{unfinished.name}")
        os.replace(unfinished, folder)
    except BaseException:
        # The disk may be full, so unfinished files are deleted immediately.
        _clean(root)
        raise
    replay.commit(saved)
    durable_io.fsync_dir(root)
    _clean(root, [each for each in _unwanted(run_dir, step, keep) if each.step not in needed])
    return Checkpoint(folder, step)


def list_checkpoints(run_dir: Path) -> list[Checkpoint]:
    """Return the checkpoints of a run, oldest first. Each is complete unless it was damaged later.

    Raises:
        UserError: If the checkpoint folder's path is a file or a broken link.
    """
    found: dict[int, Checkpoint] = {}
    root = run_dir / CHECKPOINTS
    if os.path.lexists(root) and not root.is_dir():
        raise UserError(f"{root} is not a folder, or is a broken link. Restore the folder.")
    # With this order, a checkpoint that was moved aside is used only if its step has no other checkpoint.
    for path in sorted(root.glob("*step_*")):
        if name := _NAME.fullmatch(path.name):
            step = int(name[1] or name[2])
            found[step] = Checkpoint(path, step)
    return [found[step] for step in sorted(found)]


def latest_checkpoint(
    run_dir: Path, verify: Verify = Checkpoint.verify, only_best: bool = False
) -> Checkpoint:
    """Return the newest intact checkpoint, or raise `UserError`. Warn about newer, damaged checkpoints.

    With `only_best`, only checkpoints count that were the best when they were saved.
    """
    checkpoint, faults = newest_whole(run_dir, verify, only_best)
    if checkpoint is None and only_best and list_checkpoints(run_dir):
        damaged = f" Damaged: {'; '.join(faults)}." if faults else ""
        raise UserError(
            f"{run_dir} has no checkpoint marked as the best.{damaged} Set "
            "training.evaluation_interval and training.keep_best=true, or use checkpoint=newest."
        )
    if checkpoint is None:
        text = f"{run_dir} has no checkpoint yet; a run writes one every training.checkpoint_interval steps."
        if is_stored_result(run_dir):
            repair = "docs/results/README.md explains how to get them from the git history"
            text = f"{run_dir} has no weights; {repair}."
        if faults:
            repair = "No file was changed. Restore the files from a copy, or start a new run."
            text = f"All checkpoints of {run_dir} are damaged: {'; '.join(faults)}. {repair}"
        raise UserError(text)
    for fault in faults:
        _LOG.warning("damaged checkpoint: %s; using %s", fault, checkpoint.folder)
    return checkpoint


def is_stored_result(run_dir: Path) -> bool:
    """Return whether a folder contains a compressed log, as the results in the repository do."""
    return (run_dir / f"{METRICS_FILE}{COMPRESSED}").exists()


def newest_whole(
    run_dir: Path, verify: Verify = Checkpoint.verify, only_best: bool = False
) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest intact checkpoint (or `None`) and the errors of newer, damaged checkpoints."""
    faults: list[str] = []
    for checkpoint in reversed(list_checkpoints(run_dir)):
        try:
            if only_best and not checkpoint.manifest()["best"]:
                continue
            verify(checkpoint)
            return checkpoint, faults
        except Damaged as fault:
            faults.append(str(fault))
    return None, faults


def _write_manifest(path: Path, step: int, best: bool, files: dict[str, FileRecord]) -> None:
    versions = {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__}
    manifest = {
        "format": FORMAT,
        "step": step,
        "best": best,
        "reverie": __version__,
        "versions": versions,
        "files": {name: {"bytes": r.nbytes, "sha256": r.sha256} for name, r in sorted(files.items())},
    }
    durable_io.write_json(path, manifest | {"checksum": _checksum(manifest)})


def _is_well_formed(manifest: dict[str, Any], step: int) -> bool:
    """Return whether all keys have the right types, and all required files are listed in known folders."""
    kinds = {"format": int, "step": int, "best": bool, "reverie": str, "files": dict}
    if any(type(manifest.get(name)) is not kind for name, kind in kinds.items()) or manifest["step"] != step:
        return False
    # The contents of manifests in other formats are unknown.
    if manifest["format"] != FORMAT:
        return True
    folder, files = f"step_{step:09d}", manifest["files"]
    own = {f"{name}{suffix}" for name in (MODEL, STATE) for suffix in (".json", ".safetensors")}
    return {f"{folder}/{name}" for name in (*own, *REPLAY_FILES)} <= files.keys() and all(
        name.rpartition("/")[0] in (folder, SHARED_FOLDER)
        and type(record) is dict
        and {key: type(value) for key, value in record.items()} == {"bytes": int, "sha256": str}
        for name, record in files.items()
    )


def _checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _unwanted(run_dir: Path, step: int, keep: int) -> list[Checkpoint]:
    """Return the checkpoints to delete."""
    checkpoints = list_checkpoints(run_dir)
    upto = [checkpoint for checkpoint in checkpoints if checkpoint.step <= step]
    wanted = upto[-keep:] + [checkpoint for checkpoint in upto if _is_best(checkpoint)][-1:]
    return [checkpoint for checkpoint in checkpoints if checkpoint not in wanted]


def _is_best(checkpoint: Checkpoint) -> bool:
    try:
        return checkpoint.manifest()["best"]
    except (Damaged, UserError):
        return False


def _clean(root: Path, unwanted: Sequence[Checkpoint] = ()) -> None:
    """Try to delete `unwanted` checkpoints. Restore checkpoints that were moved aside but not replaced."""
    try:
        for old in unwanted:
            os.replace(old.folder, old.folder.with_name(old.folder.name + UNFINISHED))
        for path in root.glob(f"{_REPLACED}step_*{UNFINISHED}"):
            place = path.with_name(path.name.removeprefix(_REPLACED).removesuffix(UNFINISHED))
            if not place.exists():
                os.replace(path, place)
        for path in root.glob(f"*{UNFINISHED}"):
            if _BEGUN.fullmatch(path.name):
                shutil.rmtree(path)
        needed = {name for each in list_checkpoints(root.parent) for name in each.manifest()["files"]}
        for path in (root / SHARED_FOLDER).iterdir():
            if f"{SHARED_FOLDER}/{path.name}" not in needed and _SHARED.fullmatch(path.name):
                path.unlink()
    except (Damaged, UserError) as fault:
        # The files of a damaged checkpoint are unknown, so shared files cannot be deleted safely.
        _LOG.warning("old replay files are kept, because the checkpoint that uses them is damaged: %s", fault)
    except OSError as error:
        _LOG.warning("an old checkpoint could not be deleted: %s", error)
