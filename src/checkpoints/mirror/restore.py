"""`resume=<URL>`: the newest whole checkpoint of a remote copy becomes a run folder on this machine."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...utils.durable_io import JSON_BYTES, FileRecord, verify_file
from ...utils.errors import UserError
from ...utils.remote_urls import check_url, reason_of, require_protocol, shown
from ..checkpoint import CHECKPOINTS, MANIFEST, SHARED_FOLDER, Checkpoint, Damaged
from ..run_folder import CONFIG_FILE, EXPERIMENTS, UNFINISHED
from .remote import Remote, answer_within
from .staging import BESIDE
from .upload import manifest_name, remote_steps

ANSWER_SECONDS = 30.0
"""How long a remote may take to list its files."""


def restore(url: str, run_dir: str | None) -> tuple[str, list[str]]:
    """Make a run folder of the remote copy of a run, whole or not at all.

    Args:
        url: Of the copy: what `checkpoint.mirror` said, and the name of the run in it.
        run_dir: The folder to make; None for `experiments/` and the last part of the URL.

    Returns:
        The folder, and lines that tell what was found.

    Raises:
        UserError: If the folder is in use, or the remote has no whole checkpoint or does not answer.

    Cost: disk space and transfer of one checkpoint; of another one for each that is damaged.
    """
    check_url("resume", url)
    require_protocol("resume", url)
    folder = Path(run_dir) if run_dir else EXPERIMENTS / url.rstrip("/").rpartition("/")[2]
    _require_free(folder)
    unfinished = folder.with_name(folder.name + UNFINISHED)
    with _telling(url):
        remote = Remote(url)
        sizes = answer_within(ANSWER_SECONDS, remote.sizes)
        steps = remote_steps(sizes)
        if CONFIG_FILE not in sizes or not steps:
            what = "no whole checkpoint yet" if CONFIG_FILE in sizes else "no copy of a run"
            raise UserError(f"resume={shown(url)}: there is {what}. Look for its name and try again.")
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            (unfinished / CHECKPOINTS / SHARED_FOLDER).mkdir(parents=True)
            checkpoint, faults = _newest_whole(remote, steps, unfinished)
            for name in BESIDE:
                if name in sizes:
                    remote.get(name, unfinished / name, sizes[name])
            os.replace(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    step = f"step {checkpoint.step:,}"
    notices = [f"damaged checkpoint: {fault}; using {step}" for fault in faults]
    return str(folder), [*notices, f"restored {step} of {shown(url)} into {folder}"]


def _require_free(folder: Path) -> None:
    """Refuse a folder that holds anything."""
    if (folder / CONFIG_FILE).exists():
        raise UserError(
            f"{folder} is already on this machine. Go on with it by resume={folder}, or name another folder "
            "for the copy by run_dir=."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is in use, but holds no run. Name another folder by run_dir=.")


@contextmanager
def _telling(url: str) -> Iterator[None]:
    """Turn whatever a remote or the disk raises into a sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"resume={shown(url)} could not be restored: {reason_of(error)}. Nothing was left behind; repair "
            "that and try again."
        ) from error


def _newest_whole(remote: Remote, steps: list[int], folder: Path) -> tuple[Checkpoint, list[str]]:
    """Receive checkpoints, newest first, until one is whole; return it and what is wrong with newer ones.

    Raises:
        UserError: If none is whole, or the format is not the one this Reverie reads.
    """
    faults: list[str] = []
    for step in steps:
        checkpoint = Checkpoint(folder / CHECKPOINTS / f"step_{step:09d}", step)
        try:
            _receive(remote, checkpoint)
        except Damaged as fault:
            faults.append(str(fault).replace(str(folder), remote.shown))
            shutil.rmtree(checkpoint.folder)
            continue
        _drop_others(checkpoint)
        return checkpoint, faults
    raise UserError(f"No checkpoint of {remote.shown} is whole: {'; '.join(faults)}.")


def _receive(remote: Remote, checkpoint: Checkpoint) -> None:
    """Receive the files of one checkpoint, but those that are here already, and check them.

    Raises:
        Damaged: If one is not what was written, or missing.
    """
    root = checkpoint.folder.parent
    checkpoint.folder.mkdir()
    remote.get(manifest_name(checkpoint.step), checkpoint.folder / MANIFEST, JSON_BYTES)
    for name, record in checkpoint.manifest()["files"].items():
        if verify_file(root / name, FileRecord(record["bytes"], record["sha256"])):
            with suppress(FileNotFoundError):  # which `verify` names
                remote.get(f"{CHECKPOINTS}/{name}", root / name, record["bytes"])
    checkpoint.verify()


def _drop_others(checkpoint: Checkpoint) -> None:
    """Delete shared files that only a damaged checkpoint has."""
    needed = {Path(name).name for name in checkpoint.manifest()["files"]}
    for path in (checkpoint.folder.parent / SHARED_FOLDER).iterdir():
        if path.name not in needed:
            path.unlink()
