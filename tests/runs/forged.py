"""Checkpoints that contain a foreign file, with valid checksums."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from reverie.checkpoints.checkpoint import Checkpoint, _checksum, latest_checkpoint

from .helpers import CATCH

SHORT = (
    *CATCH,
    "training.learning_starts=1000",
    "training.log_interval=8",
    "training.video_interval=0",
    "training.total_timesteps=16",
    "buffer.chunk_length=4",
)
"""Settings of 16 steps. The checkpoint has files of every kind."""


def shortly(value: object) -> str:
    """Return a short name for a parameter that may be long."""
    return repr(value)[:40]


def file_of(checkpoint: Checkpoint, kind: str) -> Path:
    """Return a file of one kind that the checkpoint needs."""
    names = sorted(checkpoint.manifest()["files"])
    name = next(n for n in names if n.startswith(kind) or n == f"{checkpoint.folder.name}/{kind}")
    return checkpoint.folder.parent / name


def put(checkpoint: Checkpoint, path: Path, data: bytes) -> None:
    """Replace a file, and its size and checksum in the manifest."""
    # The file may be shared with another copy.
    path.unlink()
    path.write_bytes(data)
    manifest = checkpoint.manifest()
    name = path.relative_to(checkpoint.folder.parent).as_posix()
    manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_manifest(checkpoint, manifest)
    checkpoint.verify()


def write_manifest(checkpoint: Checkpoint, manifest: Any) -> None:
    path = checkpoint.folder / "manifest.json"
    path.write_text(json.dumps(manifest | {"checksum": _checksum(manifest)}))


def assert_named(message: str, path: Path) -> None:
    assert str(path) in message or str(path.with_suffix(".json")) in message
    assert "\n" not in message and len(message) < 1000


def copied(good_run: Path, folder: Path) -> Checkpoint:
    shutil.copytree(good_run / "checkpoints", folder / "checkpoints")
    return latest_checkpoint(folder)
