"""Checkpoints: a folder that appears by one rename, and the newest of them."""

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..buffers import EpisodeReplayBuffer
from ..utils.errors import UserError

CHECKPOINTS = "checkpoints"
MODEL_FILE, LOOP_FILE, REPLAY_FOLDER = "model.pt", "loop.json", "replay"
FORMAT = 1
UNFINISHED = ".unfinished"
_NAME = re.compile(r"step_(\d{9,})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One complete checkpoint on disk."""

    folder: Path
    step: int

    def loop(self) -> dict[str, Any]:
        """Return the counters of the loop."""
        return json.loads((self.folder / LOOP_FILE).read_text())

    def model(self, device: torch.device) -> dict[str, Any]:
        """Return the workflow's state; only tensors and plain containers are unpickled."""
        return torch.load(self.folder / MODEL_FILE, map_location=device, weights_only=True)

    def restore_replay(self, replay: EpisodeReplayBuffer) -> None:
        """Read the replay's records back into `replay`."""
        replay.load(self.folder / REPLAY_FOLDER)


def save_checkpoint(
    run_dir: Path,
    step: int,
    loop: dict[str, Any],
    model: dict[str, Any],
    replay: EpisodeReplayBuffer,
    keep: int,
) -> Checkpoint:
    """Write a checkpoint and delete all but the newest `keep`, and what a crash left unfinished.

    It is written under another name, brought to disk and renamed: a folder with a checkpoint's name is
    complete.

    Args:
        run_dir: Folder of the run.
        step: Agent steps taken.
        loop: JSON values.
        model: Tensors, numbers and nests of them.
        replay: Buffer whose records are written.
        keep: Checkpoints to leave on disk, this one included.
    """
    folder = run_dir / CHECKPOINTS / f"step_{step:09d}"
    unfinished = folder.with_name(folder.name + UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    torch.save(model, unfinished / MODEL_FILE)
    replay.save(unfinished / REPLAY_FOLDER)
    (unfinished / LOOP_FILE).write_text(json.dumps({"format": FORMAT, "step": step, **loop}))
    for path in [*unfinished.rglob("*"), unfinished]:
        _to_disk(path)
    if folder.exists():  # the same step again: the old one goes only once the new one has its name
        os.replace(folder, folder.with_name(f"replaced_{folder.name}{UNFINISHED}"))
    os.replace(unfinished, folder)
    _to_disk(folder.parent)
    for old in [
        *folder.parent.glob(f"*{UNFINISHED}"),
        *(c.folder for c in list_checkpoints(run_dir)[:-keep]),
    ]:
        shutil.rmtree(old)
    return Checkpoint(folder, step)


def list_checkpoints(run_dir: Path) -> list[Checkpoint]:
    """Return the complete checkpoints of a run, oldest first."""
    found = ((path, _NAME.fullmatch(path.name)) for path in (run_dir / CHECKPOINTS).glob("step_*"))
    return sorted((Checkpoint(path, int(name[1])) for path, name in found if name), key=lambda c: c.step)


def latest_checkpoint(run_dir: Path) -> Checkpoint:
    """Return the newest checkpoint of a run.

    Raises:
        UserError: If there is none, or it is damaged or of another format.
    """
    checkpoints = list_checkpoints(run_dir)
    if not checkpoints:
        raise UserError(
            f"{run_dir} holds no checkpoint yet; a run writes one every training.checkpoint_interval."
        )
    newest = checkpoints[-1]
    try:
        format_ = newest.loop()["format"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{newest.folder} is damaged. Delete it to go on from the one before it.") from error
    if format_ != FORMAT:
        raise UserError(f"{newest.folder} has format {format_}, this Reverie reads format {FORMAT}.")
    return newest


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
