"""`checkpoint.mirror`, kept by a daemon thread so that training waits for no network, and `resume=<URL>`."""

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..config.schema import CheckpointConfig, TrainConfig
from ..utils.durable_io import replacing
from ..utils.errors import UserError
from ..utils.remote_urls import check_url, describe_error, redact_url, require_protocol
from ..utils.side_thread import call_with_timeout
from .checkpoint import Checkpoint, list_checkpoints, newest_whole
from .remote import (
    MirrorConflict,
    RemoteFolder,
    UploadCancelled,
    Uploader,
    identity_of,
    receive,
    require_checkpoint,
    save_identity,
)
from .run_folder import CONFIG_FILE, EXPERIMENTS

_LOG = logging.getLogger(__name__)
START_SECONDS = 5.0
"""How long the start of a run waits for a remote to say whether its folder is free."""

LIST_SECONDS = 30.0
"""How long a remote may take to list its files before `restore` gives up."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""Between two tries while a remote takes nothing; each pause is twice as long as the last."""

_JOIN_SECONDS = 1.0


def check_mirror(config: TrainConfig) -> None:
    """Refuse a mirror whose protocol cannot be used, or which holds another run, by a `UserError`.

    A remote that does not answer within `START_SECONDS` is no mistake: the run logs it and retries.
    """
    url = config.checkpoint.mirror
    if url is None:
        return
    require_protocol("checkpoint.mirror", url)
    try:
        os.stat(url.removeprefix("file://"))
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UserError(f"checkpoint.mirror={url}: {error.strerror}. Choose shorter names.") from error
    if config.run_dir is None:
        return  # the folder will have the time in its name
    identity = identity_of(Path(config.run_dir))
    remote = RemoteFolder(url, identity.name)
    try:
        call_with_timeout(START_SECONDS, partial(remote.owned_sizes, identity))
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

    This process has locked `run_dir`. Only the newest checkpoint waits; after an error it is tried again. The
    constructor raises as `identity_of` and `save_identity` do.
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
        """Let the thread copy a checkpoint, and those before it that the run still has; return at once.

        `prune` deletes remote checkpoints that the run does not have. A run that was just resumed must not:
        the remote may hold a newer one, whole, that is damaged here.
        """
        self._job = _Job(checkpoint, prune, threading.Event())
        self._wake.set()

    def _work(self) -> None:
        """Copy one job after the other until the end."""
        # Local variables: the search for leaks walks through this object, and would count the network's.
        remote = RemoteFolder(self._url, self._identity.name)
        uploader = Uploader(remote, self._run_dir, self._identity, lambda: self._is_closed)
        self._attempt(partial(remote.owned_sizes, self._identity), remote.shown)
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
        """Return whether an action works; log when an outage begins and when it ends."""
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


def restore(url: str, run_dir: str | None) -> tuple[str, list[str]]:
    """Make a run folder of the remote copy of a run, whole or not at all; return it, and lines to log.

    Without `run_dir` it is `experiments/` and the last part of the URL, which is the name of the run. A
    `UserError` if the folder is in use, or the remote has no whole checkpoint or does not answer.
    """
    check_url("resume", url)
    require_protocol("resume", url)
    folder = Path(run_dir) if run_dir else EXPERIMENTS / url.rstrip("/").rpartition("/")[2]
    _require_free(folder)
    try:
        remote = RemoteFolder(url)
        sizes = call_with_timeout(LIST_SECONDS, remote.sizes)
        require_checkpoint(remote, sizes)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as received:
            receive(remote, sizes, received)
            newest, faults = newest_whole(received)
            faults = [fault.replace(str(received), remote.shown) for fault in faults]
            if newest is None:
                raise UserError(f"No checkpoint of {remote.shown} is whole: {'; '.join(faults)}.")
            for damaged in list_checkpoints(received):
                if damaged.step > newest.step:
                    shutil.rmtree(damaged.folder)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"resume={redact_url(url)} could not be restored: {describe_error(error)}. Nothing was left "
            "behind; repair that and try again."
        ) from error
    notices = [f"damaged checkpoint: {fault}; using step {newest.step:,}" for fault in faults]
    return str(folder), [*notices, f"restored step {newest.step:,} of {remote.shown} into {folder}"]


def _require_free(folder: Path) -> None:
    if (folder / CONFIG_FILE).exists():
        raise UserError(
            f"{folder} is already on this machine. Continue it by resume={folder}, or name another folder "
            "for the copy by run_dir=."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is in use, but holds no run. Name another folder by run_dir=.")
