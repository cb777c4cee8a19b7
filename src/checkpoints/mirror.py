"""`checkpoint.mirror` and `resume=<URL>`: copy a run to and from a remote folder with fsspec.

A daemon thread uploads each manifest after its files, so a remote checkpoint with a manifest is complete.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from fsspec.core import url_to_fs
from fsspec.implementations.dirfs import DirFileSystem

from ..config.schema import CheckpointConfig
from ..utils import durable_io
from ..utils.durable_io import MALFORMED, UNFINISHED, Damaged, FileRecord
from ..utils.errors import UserError
from ..utils.logging.json_lines import METRICS_FILE
from ..utils.remote_urls import URL_SEPARATOR, check_url, describe_error, redact_url, require_protocol
from ..utils.side_thread import call_with_timeout
from .checkpoint import CHECKPOINTS, MANIFEST, SHARED_FOLDER, Checkpoint, list_checkpoints, newest_whole
from .run_folder import CONFIG_FILE, EXPERIMENTS, LINEAGE_FILE, require_free

_LOG = logging.getLogger(__name__)
IDENTITY_FILE = "mirror.json"
EXTRA_FILES = (IDENTITY_FILE, CONFIG_FILE, METRICS_FILE, LINEAGE_FILE)
"""Files to copy in addition to the checkpoints, if they exist."""

_CHECKPOINT_FILE = re.compile(rf"{CHECKPOINTS}/(step_\d{{9,18}}|{SHARED_FOLDER})/[^/]+")
PIECE_BYTES = 2**23
"""Block size of uploads, in bytes."""

_OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci"))
"""Stores with atomic uploads and without folders, where `makedirs` might create a bucket."""

START_SECONDS, LIST_SECONDS = 5.0, 30.0
"""Timeouts for listing remote files at the start of a run and in `restore`."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""First and longest pause between retries, in seconds. Each pause is twice as long as the previous one."""

_JOIN_SECONDS = 1.0


class MirrorConflict(Exception):
    """Raised if the remote folder contains another run. The message is the folder's URL."""


class UploadCancelled(Exception):
    """Raised if the mirror is closed during an upload."""


class Identity(NamedTuple):
    """Contents of `mirror.json` in the run folder and in its remote copy."""

    name: str
    """Name of the folder in `checkpoint.mirror`. It stays the same if the local folder is renamed."""

    run: str
    """Random id that prevents two runs from writing to the same remote folder."""


def identity_of(run_dir: Path) -> Identity:
    """Return the identity stored in a run folder, or a new one without writing it.

    A new name is the path relative to `experiments/` (two parts for a multirun job), or the last part of any
    other path. Raises `UserError` if the file is invalid.
    """
    path = run_dir / IDENTITY_FILE
    if not os.path.lexists(path):
        folder, experiments = run_dir.resolve(), EXPERIMENTS.resolve()
        is_inside = experiments in folder.parents
        return Identity(str(folder.relative_to(experiments)) if is_inside else folder.name, uuid.uuid4().hex)
    with durable_io.reading(path):
        saved = durable_io.parse_json(durable_io.read_regular(path))
        identity = Identity(str(saved["name"]), str(saved["run"]))
        if not {"", ".", ".."}.isdisjoint(identity.name.split("/")):
            raise ValueError("its name is not a valid folder name")
    return identity


def save_identity(identity: Identity, run_dir: Path) -> None:
    """Write `mirror.json` to a run folder atomically. See `replace_file` for errors."""
    durable_io.replace_file(run_dir / IDENTITY_FILE, [json.dumps(identity._asdict()).encode()])


class RemoteFolder:
    """Files in `url`/`name`, addressed by relative names. The folder need not exist.

    All methods may raise the file system's errors. They use up to twice `PIECE_BYTES` of memory.
    """

    def __init__(self, url: str, name: str = "") -> None:
        self.shown = "/".join(filter(None, (redact_url(url).rstrip("/"), name)))
        self._url, self._name = url, name
        self._has_folders = url.partition(URL_SEPARATOR)[0] not in _OBJECT_STORES

    @cached_property
    def files(self) -> Any:
        """The file system with this folder as its root. It is not cached, because the server may change."""
        system, path = url_to_fs(self._url, skip_instance_cache=True, use_listings_cache=False)
        folder = "/".join(filter(None, (path.rstrip("/"), self._name)))
        return DirFileSystem(folder, system, skip_instance_cache=True)

    def sizes(self, owner: Identity | None = None) -> dict[str, int]:
        """Return each regular file's size in bytes. Raise `MirrorConflict` if the folder is another run's."""
        found: dict[str, Any] = {}
        with suppress(FileNotFoundError):
            found = self.files.find("", detail=True)
        sizes = {name: int(info["size"] or 0) for name, info in found.items() if info["type"] == "file"}
        if owner and not sizes.keys().isdisjoint((IDENTITY_FILE, CONFIG_FILE)):
            with suppress(FileNotFoundError, *MALFORMED):
                if durable_io.parse_json(self.files.cat_file(IDENTITY_FILE))["run"] == owner.run:
                    return sizes
            raise MirrorConflict(self.shown)
        return sizes

    def put(self, path: Path, name: str) -> None:
        """Upload a local file. It appears under its name only once it is complete."""
        begun = f"{name}{UNFINISHED}" if self._has_folders else name
        with durable_io.open_regular(path) as source:
            if self._has_folders:
                self.files.makedirs(name.rpartition("/")[0], exist_ok=True)
            with self.files.open(begun, "wb", block_size=PIECE_BYTES) as sink:
                shutil.copyfileobj(source, sink, PIECE_BYTES)
        if self._has_folders:
            self.files.mv(begun, name)

    def delete(self, name: str) -> None:
        """Delete a file, and also its folder if the folder is then empty."""
        self.files.rm_file(name)
        if self._has_folders:
            with suppress(OSError):
                self.files.rmdir(name.rpartition("/")[0])


@dataclass
class Uploader:
    """Uploads a run's new files: first the files, then the manifests that list them. Deletions come last.

    A file counts as uploaded if its remote size matches, and either this process uploaded it or a remote
    manifest lists its checksum. Matching names are not sufficient, because resumed runs reuse names.
    `is_cancelled` is called before every file.
    """

    run_dir: Path
    identity: Identity
    is_cancelled: Callable[[], bool]
    _sent: dict[str, FileRecord] = field(default_factory=dict)

    def upload(self, remote: RemoteFolder, newest: Checkpoint, prune: bool) -> None:
        """Upload a run's checkpoints up to `newest`, newest first, and its configuration and logs.

        Remote checkpoints with a manifest are complete even if the upload is interrupted. Local checkpoints
        that are damaged, or are deleted during the upload, are skipped with a warning. Failed remote
        deletions are logged. Raises `MirrorConflict`, `UploadCancelled` and the remote file system's errors.
        """
        sizes = remote.sizes(self.identity)
        upto = [each for each in reversed(list_checkpoints(self.run_dir)) if each.step <= newest.step]
        local = {each.step: files for each in upto if (files := _local_files(each))}
        wanted = {name: record for files in local.values() for name, (_, record) in files.items()}
        self._compare(remote, sizes, wanted)
        for name in EXTRA_FILES:
            if (self.run_dir / name).exists():
                self._put(remote, self.run_dir / name, name)
        is_newest_there, nbytes = False, 0
        for step, files in local.items():
            try:
                for name, (path, record) in files.items():
                    if self._sent.get(name) != record:
                        self._sent.pop(name, None)
                        self._put(remote, path, name, record)
                        self._sent[name] = record
                        nbytes += record.nbytes
                is_newest_there |= step == newest.step
            except Damaged as fault:
                _LOG.warning("step %s: not copied to %s: %s", f"{step:,}", remote.shown, fault)
        if prune and is_newest_there:
            self._prune(remote, sizes.keys() - wanted)
        if nbytes and not self.is_cancelled():
            _LOG.info("step %s: copied to %s, %.1f MB", f"{newest.step:,}", remote.shown, nbytes / 1e6)

    def _compare(self, remote: RemoteFolder, sizes: dict[str, int], wanted: dict[str, FileRecord]) -> None:
        """Find uploaded files. Delete manifests that list a wanted file with different contents."""
        for name in _manifests_in(sizes):
            content = remote.files.cat_file(name)
            try:
                files = durable_io.parse_json(content)["files"].items()
                records = {f"{CHECKPOINTS}/{file}": FileRecord(r["bytes"], r["sha256"]) for file, r in files}
            except MALFORMED:
                # This manifest is damaged. It will be uploaded again or deleted.
                continue
            records[name] = _record_of(content)
            if any(wanted.get(file, record) != record for file, record in records.items()):
                remote.delete(name)
                del sizes[name]
            else:
                self._sent = records | self._sent
        self._sent = {name: each for name, each in self._sent.items() if sizes.get(name) == each.nbytes}

    def _put(self, remote: RemoteFolder, path: Path, name: str, record: FileRecord | None = None) -> None:
        if self.is_cancelled():
            raise UploadCancelled
        if record:
            durable_io.verify_file(path, record)
        remote.put(path, name)

    def _prune(self, remote: RemoteFolder, unwanted: set[str]) -> None:
        """Delete files of other checkpoints, manifests first, so that no partial checkpoint has one."""
        try:
            for name in sorted(unwanted, key=lambda name: not name.endswith(MANIFEST)):
                if _CHECKPOINT_FILE.fullmatch(name) and not self.is_cancelled():
                    remote.delete(name)
        except Exception as error:
            reason = describe_error(error)
            _LOG.warning("an old checkpoint could not be deleted from %s: %s", remote.shown, reason)


class _Job(NamedTuple):
    checkpoint: Checkpoint
    prune: bool
    done: threading.Event


class Mirror:
    """Copies a run's checkpoints to a remote folder. On exit, this context manager waits for a limited time.

    This process must have locked `run_dir`. Only the newest checkpoint is queued, and failed uploads are
    retried.
    """

    def __init__(self, config: CheckpointConfig, run_dir: Path) -> None:
        assert config.mirror is not None
        self._url, self._timeout, self._run_dir = config.mirror, config.mirror_timeout, run_dir
        self._identity = identity_of(run_dir)
        save_identity(self._identity, run_dir)
        self._job: _Job | None = None
        self._wake, self._is_closed, self._outage = threading.Event(), False, ""
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)

    def __enter__(self) -> "Mirror":
        """Start the thread. It lists the remote files first."""
        self._wake.set()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait up to `checkpoint.mirror_timeout` seconds for the last copy, or until Ctrl-C."""
        # Wake the thread from any pause for a last attempt. After a conflict, the mirror is already closed.
        self._wake.set()
        job = None if self._is_closed else self._job
        try:
            if job and kind is not KeyboardInterrupt and not job.done.is_set():
                _LOG.info("waiting up to %g s for the last copy; press Ctrl-C to stop waiting", self._timeout)
                with _until_ctrl_c():
                    job.done.wait(self._timeout)
        finally:
            self._is_closed = True
            self._wake.set()
            if job is None or job.done.is_set():
                self._thread.join(_JOIN_SECONDS)
            else:
                step, reason = job.checkpoint.step, f" ({self._outage})" if self._outage else ""
                text = "the checkpoint of step %s was not copied to the mirror%s; resume=%s copies it"
                _LOG.warning(text, f"{step:,}", reason, self._run_dir)

    def upload(self, checkpoint: Checkpoint, prune: bool = True) -> None:
        """Queue a copy of a checkpoint and the run's earlier checkpoints. Return immediately.

        `prune` deletes remote checkpoints that the run does not have. Do not use it right after resuming,
        because the remote folder may contain a newer, intact copy of a checkpoint that is damaged locally.
        """
        self._job = _Job(checkpoint, prune, threading.Event())
        self._wake.set()

    def _work(self) -> None:
        """Process jobs until the mirror is closed. Log the beginning and the end of outages."""
        # These are local variables, so that leak detection does not count objects of the network client.
        uploader = Uploader(self._run_dir, self._identity, lambda: self._is_closed)
        remote, pause, outage = RemoteFolder(self._url, self._identity.name), 0.0, ""
        while not self._is_closed:
            is_woken = self._wake.wait(pause or None)
            self._wake.clear()
            job = self._job
            try:
                if job is None:
                    remote.sizes(self._identity)
                elif not job.done.is_set():
                    uploader.upload(remote, job.checkpoint, job.prune)
                pause, outage = 0.0, ""
            except UploadCancelled:
                return
            except MirrorConflict as error:
                text = "%s contains another run, so copying is disabled; choose another checkpoint.mirror"
                _LOG.error(text, error)
                # Finish the newest job, because `__exit__` may be waiting for it.
                self._is_closed, job, outage = True, self._job, ""
            except Exception as error:
                pause = FIRST_PAUSE if is_woken else min(2 * pause, LONGEST_PAUSE)
                outage = describe_error(error)
                # The old connection may be unusable.
                remote = RemoteFolder(self._url, self._identity.name)
            if outage and not self._outage and not self._is_closed:
                _LOG.warning("upload to %s failed (%s), retrying", remote.shown, outage)
            elif self._outage and not outage and not self._is_closed:
                _LOG.info("upload to %s recovered", remote.shown)
            self._outage = outage
            if job and not outage:
                job.done.set()


@contextmanager
def _until_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the block and nothing else. This has no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


def check_mirror(url: str, run_dir: str | None) -> None:
    """Raise `UserError` if a mirror has an unsupported protocol, or contains the run itself or another run.

    A remote that does not answer within `START_SECONDS` is not an error, because the run retries later.
    """
    require_protocol("checkpoint.mirror", url)
    folder = Path(run_dir) if run_dir else EXPERIMENTS / "new"
    identity = identity_of(folder)
    is_local = url.partition(URL_SEPARATOR)[0] in ("file", "local")
    if is_local and Path(url_to_fs(url)[1], identity.name).resolve() == folder.resolve():
        raise UserError(
            f"checkpoint.mirror={url} contains the run folder, so the copy would overwrite the run. Choose a "
            "folder elsewhere."
        )
    # The name of a new folder contains the time, so it cannot conflict.
    if run_dir is None:
        return
    try:
        call_with_timeout(START_SECONDS, partial(RemoteFolder(url, identity.name).sizes, identity))
    except MirrorConflict as error:
        repair = f"Continue that run with resume={error}, or choose another checkpoint.mirror or run_dir."
        raise UserError(f"checkpoint.mirror: {error} already contains another run. {repair}") from error
    except Exception:
        return


def restore(url: str, run_dir: str | None) -> tuple[str, list[str]]:
    """Download the remote copy of a run atomically. Return its new run folder and lines to log.

    `run_dir` defaults to `experiments/<last part of the URL>`. Raises `UserError` if the folder is in
    use, or the remote folder has no complete checkpoint or does not respond.
    """
    check_url("resume", url)
    require_protocol("resume", url)
    folder = Path(run_dir) if run_dir else EXPERIMENTS / url.rstrip("/").rpartition("/")[2]
    require_free(folder)
    if os.path.lexists(folder) and (folder.is_symlink() or folder.is_mount() or any(folder.iterdir())):
        repair = f"Restore into a new folder, e.g. run_dir={folder / 'run'}."
        raise UserError(f"run_dir={folder} cannot be replaced by the restored folder. {repair}")
    remote = RemoteFolder(url)
    try:
        sizes = call_with_timeout(LIST_SECONDS, remote.sizes)
        manifests = _manifests_in(sizes)
        if CONFIG_FILE not in sizes or not manifests:
            what = "no complete checkpoint yet" if CONFIG_FILE in sizes else "no copy of a run"
            raise UserError(f"resume={remote.shown}: found {what}. Check the name and try again.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with durable_io.replacing(folder) as received:
            # Checkpoints without a manifest are incomplete and are not downloaded.
            folders = {f"{CHECKPOINTS}/{SHARED_FOLDER}", *(name.rpartition("/")[0] for name in manifests)}
            for name in folders:
                (received / name).mkdir(parents=True)
            for name in sizes:
                if name in EXTRA_FILES or name.rpartition("/")[0] in folders:
                    remote.files.get_file(name, str(received / name))
            newest, faults = newest_whole(received)
            faults = [fault.replace(str(received), remote.shown) for fault in faults]
            if newest is None:
                raise UserError(
                    f"All checkpoints of {remote.shown} are damaged: {'; '.join(faults)}. Start a new run."
                )
            for damaged in list_checkpoints(received):
                if damaged.step > newest.step:
                    shutil.rmtree(damaged.folder)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"resume={remote.shown} could not be restored: {describe_error(error)}. No files were kept; "
            "fix the problem and try again."
        ) from error
    notices = [f"damaged checkpoint: {fault}; using step {newest.step:,}" for fault in faults]
    return str(folder), [*notices, f"restored step {newest.step:,} of {remote.shown} into {folder}"]


def _manifests_in(sizes: dict[str, int]) -> list[str]:
    """Return the names of the remote manifests. Checkpoints with a manifest are complete."""
    return [name for name in sizes if _CHECKPOINT_FILE.fullmatch(name) and name.endswith(f"/{MANIFEST}")]


def _local_files(checkpoint: Checkpoint) -> dict[str, tuple[Path, FileRecord]]:
    """Return a checkpoint's files by remote name, manifest last, or {} if the checkpoint is damaged."""
    path, name = checkpoint.folder / MANIFEST, f"{CHECKPOINTS}/step_{checkpoint.step:09d}/{MANIFEST}"
    with suppress(Damaged, UserError, OSError):
        files = {f"{CHECKPOINTS}/{file}": record for file, record in checkpoint.files().items()}
        return files | {name: (path, _record_of(durable_io.read_regular(path)))}
    return {}


def _record_of(content: bytes) -> FileRecord:
    return FileRecord(len(content), hashlib.sha256(content).hexdigest())
