"""The files of checkpoints under second names, which stay while a slow upload reads them.

    <run>/checkpoints/.mirror/<number>/   with the files of the run under the same relative paths

Hard links take no space: a checkpoint that is deleted meanwhile stays on disk until its upload is over.
"""

import hashlib
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...utils.durable_io import FileRecord, open_regular
from ...utils.errors import UserError
from ...utils.logging.writer import METRICS_FILE
from ..checkpoint import CHECKPOINTS, MANIFEST, SHARED_FOLDER, Checkpoint, Damaged, list_checkpoints
from ..run_folder import CONFIG_FILE, LINEAGE_FILE
from .identity import IDENTITY_FILE

STAGING = ".mirror"
BESIDE = (IDENTITY_FILE, CONFIG_FILE, METRICS_FILE, LINEAGE_FILE)
"""What the run writes to again, so that a link would change with it: copied, where the run has it."""

Records = dict[str, FileRecord]
"""Files by their paths in the folder of the run."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What the remote is to hold: the run as it was when a checkpoint was done."""

    folder: Path

    step: int
    """Of the newest checkpoint."""

    others: Records
    """Configuration and logs."""

    checkpoints: tuple[Records, ...]
    """Files of each checkpoint, newest first; in each its manifest is the last."""

    prunes: bool
    """Whether the remote shall hold no other checkpoints."""

    def remove(self) -> None:
        """Give up the second names."""
        shutil.rmtree(self.folder, ignore_errors=True)


def stage(run_dir: Path, newest: Checkpoint, number: int, prunes: bool) -> Staged:
    """Link the checkpoints of a run up to `newest`, and copy its logs.

    Args:
        run_dir: Folder of the run.
        newest: A whole checkpoint; others that are damaged are left out.
        number: Not used before by this process.
        prunes: See `Staged`.

    Raises:
        OSError: If the disk is full or fails.

    Cost: 20 us for each file of the replay, and a copy of the logs.
    """
    folder = run_dir / CHECKPOINTS / STAGING / str(number)
    (folder / CHECKPOINTS / SHARED_FOLDER).mkdir(parents=True)
    try:
        present = [name for name in BESIDE if (run_dir / name).exists()]
        others = {name: _copy(run_dir / name, folder / name) for name in present}
        upto = [each for each in list_checkpoints(run_dir) if each.step <= newest.step]
        linked = [records for each in reversed(upto) if (records := _link_checkpoint(each, folder))]
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Staged(folder, newest.step, others, tuple(linked), prunes)


def clear_staging(run_dir: Path) -> None:
    """Delete what is staged; a crash may have left some."""
    shutil.rmtree(run_dir / CHECKPOINTS / STAGING, ignore_errors=True)


def _link_checkpoint(checkpoint: Checkpoint, folder: Path) -> Records | None:
    """Link the files of one checkpoint and return them, None if some are missing."""
    own = f"step_{checkpoint.step:09d}"
    target = folder / CHECKPOINTS
    try:
        files = checkpoint.manifest()["files"]
        (target / own).mkdir()
        for name in files:
            is_shared = Path(name).parent.name == SHARED_FOLDER  # else: its folder may have been moved aside
            source = checkpoint.folder.parent / name if is_shared else checkpoint.folder / Path(name).name
            _link(source, target / name)
        record = _copy(checkpoint.folder / MANIFEST, target / own / MANIFEST)
    except (Damaged, UserError, FileNotFoundError):
        return None
    records = {
        f"{CHECKPOINTS}/{name}": FileRecord(each["bytes"], each["sha256"]) for name, each in files.items()
    }
    return records | {f"{CHECKPOINTS}/{own}/{MANIFEST}": record}


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    with suppress(FileExistsError):  # checkpoints share files
        try:
            os.link(source, target)
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError:
            if not target.exists():
                shutil.copyfile(source, target)


def _copy(source: Path, target: Path) -> FileRecord:
    with open_regular(source) as read, target.open("wb") as written:
        shutil.copyfileobj(read, written)
    with target.open("rb") as file:
        return FileRecord(target.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
