"""Making a remote folder the same as what is staged: new files first, then manifests, then deletions."""

import hashlib
import logging
import re
from collections.abc import Callable, Container
from typing import Any

from ...utils.durable_io import FileRecord, parse_json
from ...utils.remote_urls import reason_of
from ..checkpoint import CHECKPOINTS, MANIFEST, SHARED_FOLDER, SHARED_SUFFIX
from .identity import Identity, require_own
from .remote import UNFINISHED, Remote
from .staging import Records, Staged

_LOG = logging.getLogger(__name__)
_OURS = re.compile(
    rf"{CHECKPOINTS}/(step_\d{{9,18}}/[^/]+|{SHARED_FOLDER}/[^/]+{re.escape(SHARED_SUFFIX)}({re.escape(UNFINISHED)})?)"
)
_MANIFEST = re.compile(rf"{CHECKPOINTS}/step_(\d{{9,18}})/{re.escape(MANIFEST)}")


class GivenUp(Exception):
    """Nobody wants this upload any more."""


class Uploader:
    """Knows what a remote folder holds, and sends what is new.

    A file counts as there if its size is right and its checksum is known: because this process sent it, or
    because a manifest on the remote tells it. A name alone is not enough: a run that goes on from an older
    checkpoint writes the same names again.

    Args:
        remote: Folder of the run.
        identity: Of the run.
        is_given_up: Asked before every file.
    """

    def __init__(self, remote: Remote, identity: Identity, is_given_up: Callable[[], bool]) -> None:
        self._remote, self._identity, self._is_given_up = remote, identity, is_given_up
        self._needs: dict[str, dict[str, str]] | None = None  # checksums of files, by the manifest
        self._known: dict[str, str] = {}
        self._sizes: dict[str, int] = {}

    def begin(self) -> None:
        """Look whose the folder is and what it holds, once.

        Raises:
            Foreign: If it holds another run.
            Exception: Whatever keeps the remote from answering.
        """
        if self._needs is None:
            require_own(self._remote, self._identity)
            self._needs = _remote_needs(self._remote)
            self._known = {name: sha256 for files in self._needs.values() for name, sha256 in files.items()}

    def upload(self, staged: Staged) -> None:
        """Send what is new, then delete what is not wanted.

        Whenever this ends early, every remote checkpoint that has its manifest is whole.

        Raises:
            Foreign: If the folder holds another run.
            GivenUp: If it was.
            Exception: Whatever keeps the remote from taking a file; a file that it does not delete is only
                told.
        """
        self.begin()
        self._sizes = self._remote.sizes()
        wanted = {name: each.sha256 for files in staged.checkpoints for name, each in files.items()}
        self._retire(wanted)
        for name, record in staged.others.items():
            self._send(staged, name, record)
        sent = sum(self._send_checkpoint(staged, files) for files in staged.checkpoints)
        if staged.prunes:
            self._prune(wanted)
        if sent and not self._is_given_up():
            _LOG.info("step %s: copied to %s, %.1f MB", f"{staged.step:,}", self._remote.shown, sent / 1e6)

    def _retire(self, wanted: dict[str, str]) -> None:
        """Delete the manifests that need another content of a file than is about to be sent."""
        assert self._needs is not None
        for manifest, files in list(self._needs.items()):
            if manifest not in self._sizes:
                del self._needs[manifest]
            elif any(wanted.get(name, sha256) != sha256 for name, sha256 in files.items()):
                self._delete(manifest)

    def _send_checkpoint(self, staged: Staged, files: Records) -> int:
        assert self._needs is not None
        sent = sum(self._send(staged, name, record) for name, record in files.items())
        self._needs[next(reversed(files))] = {name: record.sha256 for name, record in files.items()}
        return sent

    def _send(self, staged: Staged, name: str, record: FileRecord) -> int:
        """Send a file unless it is there; return the bytes sent."""
        if self._is_there(name, record):
            return 0
        if self._is_given_up():
            raise GivenUp
        self._known.pop(name, None)
        self._remote.put(staged.folder / name, name)
        self._known[name], self._sizes[name] = record.sha256, record.nbytes
        return record.nbytes

    def _is_there(self, name: str, record: FileRecord) -> bool:
        return (self._sizes.get(name), self._known.get(name)) == (record.nbytes, record.sha256)

    def _prune(self, wanted: Container[str]) -> None:
        """Delete files of checkpoints that are not wanted, manifests first: half a checkpoint has none."""
        stale = [name for name in self._sizes if _OURS.fullmatch(name) and name not in wanted]
        try:
            for name in sorted(stale, key=lambda name: not _MANIFEST.fullmatch(name)):
                if self._is_given_up():
                    return
                self._delete(name)
        except Exception as error:
            reason = reason_of(error)
            _LOG.warning("an old checkpoint could not be deleted from %s: %s", self._remote.shown, reason)

    def _delete(self, name: str) -> None:
        assert self._needs is not None
        self._remote.delete(name)
        self._needs.pop(name, None)
        self._known.pop(name, None)
        self._sizes.pop(name, None)


def remote_steps(sizes: dict[str, int]) -> list[int]:
    """Return the steps of the checkpoints among remote files, newest first: those that have a manifest."""
    found = (_MANIFEST.fullmatch(name) for name in sizes)
    return sorted((int(match[1]) for match in found if match), reverse=True)


def manifest_name(step: int) -> str:
    """Return the remote name of a checkpoint's manifest."""
    return f"{CHECKPOINTS}/step_{step:09d}/{MANIFEST}"


def _remote_needs(remote: Remote) -> dict[str, dict[str, str]]:
    """Return the checksums that each manifest on a remote tells, and its own."""
    needs: dict[str, dict[str, str]] = {}
    for step in remote_steps(remote.sizes()):
        content = remote.read(manifest_name(step))
        try:
            files: dict[str, Any] = parse_json(content)["files"]
            told = {f"{CHECKPOINTS}/{name}": str(record["sha256"]) for name, record in files.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # damaged: it will be written again, or deleted
        name = manifest_name(step)
        needs[name] = told | {name: hashlib.sha256(content).hexdigest()}
    return needs
