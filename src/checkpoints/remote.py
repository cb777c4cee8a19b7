"""A remote folder over fsspec; how a run gets into it and out of it."""

import hashlib
import json
import logging
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fsspec.core import url_to_fs
from fsspec.implementations.dirfs import DirFileSystem

from ..utils.durable_io import (
    MALFORMED,
    UNFINISHED,
    Damaged,
    FileRecord,
    open_regular,
    parse_json,
    read_json,
    read_regular,
    reading,
    replace_file,
    verify_file,
)
from ..utils.errors import UserError
from ..utils.logging.writer import METRICS_FILE
from ..utils.remote_urls import URL_SEPARATOR, describe_error, redact_url
from .checkpoint import CHECKPOINTS, MANIFEST, SHARED_FOLDER, Checkpoint, list_checkpoints
from .run_folder import CONFIG_FILE, EXPERIMENTS, LINEAGE_FILE

_LOG = logging.getLogger(__name__)
CHECKPOINT_FILE = re.compile(rf"{CHECKPOINTS}/(step_\d{{9,18}}|{SHARED_FOLDER})/[^/]+")
IDENTITY_FILE = "mirror.json"
EXTRA_FILES = (IDENTITY_FILE, CONFIG_FILE, METRICS_FILE, LINEAGE_FILE)
"""What is copied in addition to the checkpoints, where the run has it."""

PIECE_BYTES = 2**23
"""Most of a file that is sent or received at once; files above 75 GB are sent in larger pieces."""

_MOST_PIECES = 9_000  # S3 takes 10,000
_OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci"))
"""They show a file only once it is whole, and have no folders: `makedirs` might make a bucket."""


class MirrorConflict(Exception):
    """The remote folder holds another run; the message names the folder."""


class UploadCancelled(Exception):
    """The mirror was closed during an upload."""


class Identity(NamedTuple):
    """A run as its mirror knows it: `mirror.json`, in the folder of the run and in its copy."""

    name: str
    """Of its folder in `checkpoint.mirror`; it stays when the local folder is renamed."""

    run: str
    """A random word, so that two runs never write into one remote folder."""


def identity_of(run_dir: Path) -> Identity:
    """Return the identity in a run's folder, or a new one, which is not written yet.

    The name is the path in `experiments/`, which has two parts for a job of a multirun, else the last part.
    A file that Reverie did not write raises a `UserError`.
    """
    path = run_dir / IDENTITY_FILE
    if not os.path.lexists(path):
        folder, experiments = run_dir.resolve(), EXPERIMENTS.resolve()
        is_inside = experiments in folder.parents
        name = folder.relative_to(experiments).as_posix() if is_inside else folder.name
        return Identity(name, uuid.uuid4().hex)
    saved = read_json(path)
    with reading(path):
        identity = Identity(name=str(saved["name"]), run=str(saved["run"]))
        if not identity.name or not {"", ".", ".."}.isdisjoint(identity.name.split("/")):
            raise ValueError("it names no folder")
    return identity


def save_identity(identity: Identity, run_dir: Path) -> None:
    """Write `mirror.json` into a run's folder, whole or not at all; raises as `replace_file` does."""
    replace_file(run_dir / IDENTITY_FILE, [json.dumps(identity._asdict()).encode()])


class RemoteFolder:
    """Files in `url`/`name`, by their relative names; nothing need exist yet.

    Every method may raise whatever the file system raises. Cost: memory of twice `PIECE_BYTES`.
    """

    def __init__(self, url: str, name: str = "") -> None:
        self.shown = "/".join(part for part in (redact_url(url).rstrip("/"), name) if part)
        self._url, self._name = url, name
        self._has_folders = url.partition(URL_SEPARATOR)[0] not in _OBJECT_STORES

    @cached_property
    def files(self) -> Any:
        """The file system with this folder as its root, without caches: the server may change."""
        system, path = url_to_fs(self._url, skip_instance_cache=True, use_listings_cache=False)
        folder = "/".join(part for part in (path.rstrip("/"), self._name) if part)
        return DirFileSystem(folder, system, skip_instance_cache=True)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every regular file by name; others may be pipes, which are never read."""
        try:
            found: dict[str, Any] = self.files.find("", detail=True)
        except FileNotFoundError:
            return {}
        return {name: int(info["size"] or 0) for name, info in found.items() if info["type"] == "file"}

    def owned_sizes(self, identity: Identity) -> dict[str, int]:
        """Return the same for the folder of a run; a `MirrorConflict` if it holds another one."""
        sizes = self.sizes()
        if sizes.keys().isdisjoint((IDENTITY_FILE, CONFIG_FILE)):
            return sizes
        try:
            owner = parse_json(self.files.cat_file(IDENTITY_FILE))["run"] if IDENTITY_FILE in sizes else None
        except MALFORMED:
            owner = None
        if owner != identity.run:
            raise MirrorConflict(self.shown)
        return sizes

    def put(self, source: BinaryIO, name: str) -> None:
        """Send an open local file; it has its name only once it is whole."""
        piece = max(PIECE_BYTES, math.ceil(os.fstat(source.fileno()).st_size / _MOST_PIECES))
        unfinished = f"{name}{UNFINISHED}" if self._has_folders else name
        if self._has_folders:
            self.files.makedirs(name.rpartition("/")[0], exist_ok=True)
        with self.files.open(unfinished, "wb", block_size=piece) as sink:
            shutil.copyfileobj(source, sink, PIECE_BYTES)
        if self._has_folders:
            self.files.mv(unfinished, name)

    def delete(self, name: str) -> None:
        """Delete a file, and its folder if that is empty then."""
        self.files.rm_file(name)
        if self._has_folders:
            with suppress(OSError):
                self.files.rmdir(name.rpartition("/")[0])


@dataclass
class Uploader:
    """Sends what is new of a run: files first, then the manifest that names them, deletions last.

    A file counts as sent if it has its size on the remote, and this process sent it or a manifest there names
    its checksum: a run that continues from an older checkpoint writes the same names again. `is_cancelled` is
    asked before every file.
    """

    remote: RemoteFolder
    run_dir: Path
    identity: Identity
    is_cancelled: Callable[[], bool]
    _sent: dict[str, FileRecord] = field(default_factory=dict)

    def upload(self, newest: Checkpoint, prune: bool) -> None:
        """Send the checkpoints of a run up to `newest`, the newest first, and its configuration and logs.

        Whenever this ends early, every remote checkpoint that has its manifest is whole. A checkpoint that
        the run deletes meanwhile, or that is damaged here, is given up with a warning. A file that the remote
        does not delete is logged; raised are `MirrorConflict`, `UploadCancelled`, and its errors of sending.
        """
        sizes = self.remote.owned_sizes(self.identity)
        upto = [each for each in reversed(list_checkpoints(self.run_dir)) if each.step <= newest.step]
        local = {each: files for each in upto if (files := _local_files(each))}
        wanted = {name: record for files in local.values() for name, (_, record) in files.items()}
        self._compare(sizes, wanted)
        for name in EXTRA_FILES:
            if (self.run_dir / name).exists():
                self._put(self.run_dir / name, name)
        is_newest_there, nbytes = False, 0
        for checkpoint, files in local.items():
            try:
                for name, (path, record) in files.items():
                    if self._sent.get(name) != record:
                        self._sent.pop(name, None)
                        self._put(path, name, record)
                        self._sent[name] = record
                        nbytes += record.nbytes
                is_newest_there |= checkpoint.step == newest.step
            except Damaged as fault:
                step = f"{checkpoint.step:,}"
                _LOG.warning("step %s: not copied to %s: %s", step, self.remote.shown, fault)
        if prune and is_newest_there:
            self._prune(sizes, wanted)
        if nbytes and not self.is_cancelled():
            _LOG.info("step %s: copied to %s, %.1f MB", f"{newest.step:,}", self.remote.shown, nbytes / 1e6)

    def _compare(self, sizes: dict[str, int], wanted: dict[str, FileRecord]) -> None:
        """Find out which files are there; delete the manifests that need another content of a wanted one."""
        known = dict(self._sent)
        for name in _manifests_in(sizes):
            content = self.remote.files.cat_file(name)
            try:
                files = parse_json(content)["files"].items()
                records = {f"{CHECKPOINTS}/{file}": FileRecord(r["bytes"], r["sha256"]) for file, r in files}
            except MALFORMED:
                continue  # damaged: it is written again, or deleted
            records[name] = _record_of(content)
            if any(wanted.get(file, record) != record for file, record in records.items()):
                self.remote.delete(name)
                del sizes[name]
            else:
                known = records | known
        self._sent = {name: record for name, record in known.items() if sizes.get(name) == record.nbytes}

    def _put(self, path: Path, name: str, record: FileRecord | None = None) -> None:
        if self.is_cancelled():
            raise UploadCancelled
        if record:
            verify_file(path, record)
        with open_regular(path) as source:
            self.remote.put(source, name)

    def _prune(self, sizes: dict[str, int], wanted: dict[str, FileRecord]) -> None:
        """Delete files of checkpoints that are not wanted, manifests first: half a checkpoint has none."""
        stale = [name for name in sizes if CHECKPOINT_FILE.fullmatch(name) and name not in wanted]
        try:
            for name in sorted(stale, key=lambda name: not name.endswith(MANIFEST)):
                if not self.is_cancelled():
                    self.remote.delete(name)
        except Exception as error:
            reason = describe_error(error)
            _LOG.warning("an old checkpoint could not be deleted from %s: %s", self.remote.shown, reason)


def require_checkpoint(remote: RemoteFolder, sizes: dict[str, int]) -> None:
    """Refuse remote files that are not the copy of a run with a checkpoint."""
    if CONFIG_FILE not in sizes or not _manifests_in(sizes):
        what = "no whole checkpoint yet" if CONFIG_FILE in sizes else "no copy of a run"
        raise UserError(f"resume={remote.shown}: there is {what}. Look for its name and try again.")


def receive(remote: RemoteFolder, sizes: dict[str, int], folder: Path) -> None:
    """Receive the checkpoints that have a manifest, and what else belongs to a run."""
    manifests = _manifests_in(sizes)
    (folder / CHECKPOINTS / SHARED_FOLDER).mkdir(parents=True)
    for name in manifests:
        (folder / name).parent.mkdir()
    for name in sizes:
        # Only into folders that were just made: a checkpoint without manifest is not whole.
        is_wanted = name in EXTRA_FILES or CHECKPOINT_FILE.fullmatch(name)
        if is_wanted and (folder / name).parent.is_dir():
            remote.files.get_file(name, str(folder / name))


def _manifests_in(sizes: dict[str, int]) -> list[str]:
    """Return the names of the manifests among remote files: the checkpoints that have one are whole."""
    return [name for name in sizes if CHECKPOINT_FILE.fullmatch(name) and name.endswith(f"/{MANIFEST}")]


def _local_files(checkpoint: Checkpoint) -> dict[str, tuple[Path, FileRecord]]:
    """Return the files of a checkpoint by their remote names, the manifest last; none if that is damaged."""
    path = checkpoint.folder / MANIFEST
    try:
        content = read_regular(path)
        files = {f"{CHECKPOINTS}/{name}": file for name, file in checkpoint.files().items()}
    except (Damaged, UserError, OSError):
        return {}
    return files | {f"{CHECKPOINTS}/step_{checkpoint.step:09d}/{MANIFEST}": (path, _record_of(content))}


def _record_of(content: bytes) -> FileRecord:
    return FileRecord(len(content), hashlib.sha256(content).hexdigest())
