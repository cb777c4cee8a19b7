"""The copy of a run in a remote folder. A daemon thread keeps it, so training never waits for a network."""

import hashlib
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..config.schema import CheckpointConfig, TrainConfig
from ..utils.durable_io import (
    JSON_BYTES,
    MALFORMED,
    Damaged,
    FileRecord,
    open_regular,
    parse_json,
    read_regular,
    verify_file,
)
from ..utils.errors import UserError
from ..utils.remote_urls import describe_error, require_protocol
from .checkpoint import CHECKPOINTS, MANIFEST, Checkpoint, list_checkpoints
from .remote import (
    CHECKPOINT_FILE,
    EXTRA_FILES,
    Identity,
    MirrorConflict,
    RemoteFolder,
    call_with_timeout,
    identity_of,
    manifests_in,
    owned_sizes,
    save_identity,
)

_LOG = logging.getLogger(__name__)
START_SECONDS = 5.0
"""How long the start of a run waits for a remote to say whether its folder is free."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""Between two tries while a remote takes nothing; each pause is twice as long as the last."""

_JOIN_SECONDS = 1.0


class UploadCancelled(Exception):
    """The mirror was closed during an upload."""


def check_mirror(config: TrainConfig) -> None:
    """Refuse a mirror whose protocol cannot be used, or which holds another run, by a `UserError`.

    A remote that does not answer within `START_SECONDS` is no mistake: the run logs it and retries. Without
    `run_dir` the folder has the time in its name, and is free.
    """
    url = config.checkpoint.mirror
    if url is None:
        return
    require_protocol("checkpoint.mirror", url)
    if config.run_dir is None:
        return
    identity = identity_of(Path(config.run_dir))
    try:
        call_with_timeout(START_SECONDS, lambda: owned_sizes(RemoteFolder(url, identity.name), identity))
    except MirrorConflict as error:
        raise UserError(
            f"checkpoint.mirror: {error} already holds another run. Continue that one by resume={error}, "
            "or choose another checkpoint.mirror or run_dir."
        ) from error
    except Exception:
        return


class _Job(NamedTuple):
    checkpoint: Checkpoint
    prune: bool
    done: threading.Event


class Mirror:
    """Copies what a run saves to a remote folder; a context manager whose end waits a limited time.

    This process has locked `run_dir`. Of the checkpoints that wait to be copied only the newest is kept.
    After an error it is tried again, until a newer one comes.

    Raises:
        UserError: If the identity in the folder is not one that Reverie wrote.
        OSError: If the disk is full or fails.
    """

    def __init__(self, config: CheckpointConfig, run_dir: Path) -> None:
        assert config.mirror is not None
        self._url, self._timeout, self._run_dir = config.mirror, config.mirror_timeout, run_dir
        self._identity = identity_of(run_dir)
        save_identity(self._identity, run_dir)
        self._job: _Job | None = None
        self._wake, self._is_closed = threading.Event(), False
        self._outage: str | None = None
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)

    def __enter__(self) -> "Mirror":
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the last copy, at most `checkpoint.mirror_timeout` seconds; not after a second Ctrl-C."""
        self._wake.set()  # one more try now, whatever pause the thread is in
        job = None if self._is_closed else self._job  # by a conflict
        try:
            if job and kind is not KeyboardInterrupt and not job.done.is_set():
                _LOG.info("waiting up to %g s for the last copy; Ctrl-C ends the wait", self._timeout)
                job.done.wait(self._timeout)
        finally:
            self._is_closed = True
            self._wake.set()
            if job is None or job.done.is_set():
                self._thread.join(_JOIN_SECONDS)
            else:
                _LOG.warning(
                    "the checkpoint of step %s is not on the mirror yet%s; resume=%s copies it",
                    f"{job.checkpoint.step:,}",
                    f" ({self._outage})" if self._outage else "",
                    os.path.relpath(self._run_dir),
                )

    def upload(self, checkpoint: Checkpoint, prune: bool = True) -> None:
        """Let the thread copy a whole checkpoint, and those before it that the run still has; return at once.

        `prune` deletes remote checkpoints that the run does not have. A run that was just resumed must not:
        the remote may hold a newer one, whole, that is damaged here.
        """
        self._job = _Job(checkpoint, prune, threading.Event())
        self._wake.set()

    def _work(self) -> None:
        """Copy one job after the other until the end, in the thread."""
        # Whatever belongs to the remote is a local variable: the search for leaks walks from the loop through
        # this object, and would count the objects of the network library.
        remote = RemoteFolder(self._url, self._identity.name)
        uploader = Uploader(remote, self._run_dir, self._identity, lambda: self._is_closed)
        self._attempt(partial(owned_sizes, remote, self._identity), remote.shown)
        pause: float | None = None
        while not self._is_closed:
            is_woken = self._wake.wait(pause)
            self._wake.clear()
            job = self._job
            if job is None or job.done.is_set():
                pause = None
            elif self._attempt(partial(uploader.upload, job.checkpoint, job.prune), remote.shown):
                pause = None
                job.done.set()
            elif pause is None or is_woken:
                pause = FIRST_PAUSE_SECONDS
            else:
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _attempt(self, action: Callable[[], object], place: str) -> bool:
        """Return whether an action works; log an outage once when it begins and once when it ends."""
        try:
            action()
        except UploadCancelled:
            return False
        except MirrorConflict:
            _LOG.error("%s holds another run: nothing is copied; choose another checkpoint.mirror", place)
            self._is_closed = True
            if self._job:
                self._job.done.set()  # there is nothing to wait for
            return False
        except Exception as error:
            if not self._outage and not self._is_closed:
                _LOG.warning("upload to %s failed (%s), retrying", place, describe_error(error))
            self._outage = describe_error(error)
            return False
        if self._outage and not self._is_closed:
            _LOG.info("upload to %s recovered", place)
        self._outage = None
        return True


class Uploader:
    """Sends what is new of a run: files first, then the manifest that names them, deletions last.

    A file counts as sent if it has its size on the remote, and this process sent it or a manifest there names
    its checksum. The name alone is not enough: a run that continues from an older checkpoint writes the same
    names again. `is_cancelled` is asked before every file.
    """

    def __init__(
        self, remote: RemoteFolder, run_dir: Path, identity: Identity, is_cancelled: Callable[[], bool]
    ) -> None:
        self._remote, self._run_dir, self._identity = remote, run_dir, identity
        self._is_cancelled = is_cancelled
        self._sent: dict[str, FileRecord] = {}

    def upload(self, newest: Checkpoint, prune: bool) -> None:
        """Send the checkpoints of a run up to `newest`, the newest first, and its configuration and logs.

        Whenever this ends early, every remote checkpoint that has its manifest is whole. A checkpoint that
        the run deletes meanwhile, or that is damaged here, is given up with a warning.

        Raises:
            MirrorConflict: If the folder holds another run.
            UploadCancelled: If it was.
            Exception: Whatever keeps the remote from taking a file; one that it does not delete is logged.
        """
        sizes = owned_sizes(self._remote, self._identity)
        upto = [each for each in reversed(list_checkpoints(self._run_dir)) if each.step <= newest.step]
        local = {each: files for each in upto if (files := _local_files(each))}
        wanted = {name: record for files in local.values() for name, (_, record) in files.items()}
        self._compare(sizes, wanted)
        for name in EXTRA_FILES:
            if (self._run_dir / name).exists():
                self._put(self._run_dir / name, name)
        copied, nbytes = set[int](), 0
        for checkpoint, files in local.items():
            try:
                for name, (path, record) in files.items():
                    if self._sent.get(name) != record:
                        self._sent.pop(name, None)
                        self._put(path, name, record)
                        self._sent[name] = record
                        nbytes += record.nbytes
                copied.add(checkpoint.step)
            except Damaged as fault:
                place = self._remote.shown
                _LOG.warning("step %s: not copied to %s: %s", f"{checkpoint.step:,}", place, fault)
        if prune and newest.step in copied:
            self._prune(sizes, wanted)
        if nbytes and not self._is_cancelled():
            _LOG.info("step %s: copied to %s, %.1f MB", f"{newest.step:,}", self._remote.shown, nbytes / 1e6)

    def _compare(self, sizes: dict[str, int], wanted: dict[str, FileRecord]) -> None:
        """Find out which files are there; delete the manifests that need another content of a wanted one."""
        known = dict(self._sent)
        for name in manifests_in(sizes):
            content = self._remote.files.cat_file(name)
            try:
                files = parse_json(content)["files"].items()
                records = {f"{CHECKPOINTS}/{file}": FileRecord(r["bytes"], r["sha256"]) for file, r in files}
            except MALFORMED:
                continue  # damaged: it is written again, or deleted
            records[name] = _record_of(content)
            if any(wanted.get(file, record) != record for file, record in records.items()):
                self._remote.delete(name)
                del sizes[name]
            else:
                known = records | known
        self._sent = {name: record for name, record in known.items() if sizes.get(name) == record.nbytes}

    def _put(self, path: Path, name: str, record: FileRecord | None = None) -> None:
        if self._is_cancelled():
            raise UploadCancelled
        if record:
            verify_file(path, record)
        with open_regular(path) as source:
            self._remote.put(source, name)

    def _prune(self, sizes: dict[str, int], wanted: dict[str, FileRecord]) -> None:
        """Delete files of checkpoints that are not wanted, manifests first: half a checkpoint has none."""
        stale = [name for name in sizes if CHECKPOINT_FILE.fullmatch(name) and name not in wanted]
        try:
            for name in sorted(stale, key=lambda name: not name.endswith(MANIFEST)):
                if not self._is_cancelled():
                    self._remote.delete(name)
        except Exception as error:
            reason = describe_error(error)
            _LOG.warning("an old checkpoint could not be deleted from %s: %s", self._remote.shown, reason)


def _local_files(checkpoint: Checkpoint) -> dict[str, tuple[Path, FileRecord]]:
    """Return the files of a checkpoint by their remote names, the manifest last; none if that is damaged."""
    path = checkpoint.folder / MANIFEST
    try:
        content = read_regular(path, JSON_BYTES)
        files = {f"{CHECKPOINTS}/{name}": file for name, file in checkpoint.files().items()}
    except (Damaged, UserError, OSError):
        return {}
    return files | {f"{CHECKPOINTS}/step_{checkpoint.step:09d}/{MANIFEST}": (path, _record_of(content))}


def _record_of(content: bytes) -> FileRecord:
    return FileRecord(len(content), hashlib.sha256(content).hexdigest())
