"""A remote folder over fsspec, the run that owns it, and `resume=<URL>`, which restores that run."""

import json
import math
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from fsspec.core import url_to_fs
from fsspec.implementations.dirfs import DirFileSystem

from ..utils.durable_io import MALFORMED, UNFINISHED, parse_json, read_json, reading, replace_file
from ..utils.errors import UserError
from ..utils.logging.writer import METRICS_FILE
from ..utils.remote_urls import URL_SEPARATOR, check_url, describe_error, redact_url, require_protocol
from .checkpoint import CHECKPOINTS, MANIFEST, SHARED_FOLDER, list_checkpoints, newest_whole
from .run_folder import CONFIG_FILE, EXPERIMENTS, LINEAGE_FILE

IDENTITY_FILE = "mirror.json"
CHECKPOINT_FILE = re.compile(rf"{CHECKPOINTS}/(step_\d{{9,18}}|{SHARED_FOLDER})/[^/]+")
EXTRA_FILES = (IDENTITY_FILE, CONFIG_FILE, METRICS_FILE, LINEAGE_FILE)
"""What is copied in addition to the checkpoints, where the run has it."""

PIECE_BYTES = 2**23
"""Most of a file that is sent or received at once; files above 75 GB are sent in larger pieces."""

LIST_SECONDS = 30.0
"""How long a remote may take to list its files before `restore` gives up."""

_MOST_PIECES = 9_000  # S3 takes 10,000
_OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci"))
"""They show a file only once it is whole, and have no folders: `makedirs` might make a bucket."""

Answer = TypeVar("Answer")


class RemoteFolder:
    """Files on a file system that fsspec knows, by their relative names; nothing need exist yet.

    The folder is `name` in that of `url`. Every method may raise whatever that file system raises.

    Cost: memory of twice `PIECE_BYTES` for a file of any size, plus what the package behind it takes.
    """

    def __init__(self, url: str, name: str = "") -> None:
        self.shown = "/".join(part for part in (redact_url(url).rstrip("/"), name) if part)
        self._url, self._name = url, name
        self._has_folders = url.partition(URL_SEPARATOR)[0] not in _OBJECT_STORES

    @cached_property
    def files(self) -> Any:
        """The file system with this folder as its root; to open it may take a connection."""
        # No caches: they may hold answers from before the server changed.
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


class MirrorConflict(Exception):
    """The remote folder holds another run; the message names the folder."""


class Identity(NamedTuple):
    """A run as its mirror knows it: `mirror.json`, in the folder of the run and in its copy."""

    name: str
    """Of its folder in `checkpoint.mirror`; it stays when the local folder is renamed."""

    run: str
    """A random word that no other run has, so that two runs never write into one remote folder."""


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


def owned_sizes(remote: RemoteFolder, identity: Identity) -> dict[str, int]:
    """Return the sizes of the files in a remote folder; a `MirrorConflict` if it holds another run."""
    sizes = remote.sizes()
    if sizes.keys().isdisjoint((IDENTITY_FILE, CONFIG_FILE)):
        return sizes
    try:
        owner = parse_json(remote.files.cat_file(IDENTITY_FILE))["run"] if IDENTITY_FILE in sizes else None
    except MALFORMED:
        owner = None
    if owner != identity.run:
        raise MirrorConflict(remote.shown)
    return sizes


def manifests_in(sizes: dict[str, int]) -> list[str]:
    """Return the names of the manifests among remote files: the checkpoints that have one are whole."""
    return [name for name in sizes if CHECKPOINT_FILE.fullmatch(name) and name.endswith(f"/{MANIFEST}")]


def call_with_timeout(seconds: float, call: Callable[[], Answer]) -> Answer:
    """Return what `call` returns, or raise what it raises, or a `TimeoutError`.

    A daemon thread runs it, which may outlive this.
    """
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="ask the mirror", daemon=True).start()
    if not wait([answer], seconds).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answer.result()


def restore(url: str, run_dir: str | None) -> tuple[str, list[str]]:
    """Make a run folder of the remote copy of a run, whole or not at all; return it, and lines to log.

    The URL is the value of `checkpoint.mirror`, and the name of the run in it. Without `run_dir` the folder
    is `experiments/` and the last part of the URL.

    Raises:
        UserError: If the folder is in use, or the remote has no whole checkpoint or does not answer.

    Cost: disk space and transfer of the checkpoints that the run kept.
    """
    check_url("resume", url)
    require_protocol("resume", url)
    folder = Path(run_dir) if run_dir else EXPERIMENTS / url.rstrip("/").rpartition("/")[2]
    _require_free(folder)
    unfinished = folder.with_name(folder.name + UNFINISHED)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        remote = RemoteFolder(url)
        _receive(remote, unfinished)
        newest, faults = newest_whole(unfinished)
        faults = [fault.replace(str(unfinished), remote.shown) for fault in faults]
        if newest is None:
            raise UserError(f"No checkpoint of {remote.shown} is whole: {'; '.join(faults)}.")
        for damaged in list_checkpoints(unfinished):
            if damaged.step > newest.step:
                shutil.rmtree(damaged.folder)
        os.replace(unfinished, folder)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"resume={redact_url(url)} could not be restored: {describe_error(error)}. Nothing was left "
            "behind; repair that and try again."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    notices = [f"damaged checkpoint: {fault}; using step {newest.step:,}" for fault in faults]
    return str(folder), [*notices, f"restored step {newest.step:,} of {remote.shown} into {folder}"]


def _require_free(folder: Path) -> None:
    """Refuse a folder that holds anything."""
    if (folder / CONFIG_FILE).exists():
        raise UserError(
            f"{folder} is already on this machine. Continue it by resume={folder}, or name another folder "
            "for the copy by run_dir=."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is in use, but holds no run. Name another folder by run_dir=.")


def _receive(remote: RemoteFolder, folder: Path) -> None:
    """Receive the checkpoints that have a manifest, and what else belongs to a run."""
    sizes = call_with_timeout(LIST_SECONDS, remote.sizes)
    manifests = manifests_in(sizes)
    if CONFIG_FILE not in sizes or not manifests:
        what = "no whole checkpoint yet" if CONFIG_FILE in sizes else "no copy of a run"
        raise UserError(f"resume={remote.shown}: there is {what}. Look for its name and try again.")
    (folder / CHECKPOINTS / SHARED_FOLDER).mkdir(parents=True)
    for name in manifests:
        (folder / name).parent.mkdir()
    for name in sizes:
        # Only into folders that were just made: a checkpoint without manifest is not whole.
        is_wanted = name in EXTRA_FILES or CHECKPOINT_FILE.fullmatch(name)
        if is_wanted and (folder / name).parent.is_dir():
            remote.files.get_file(name, str(folder / name))
