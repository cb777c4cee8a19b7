"""The remote copy of a run, kept by a thread of its own: training never waits for a network."""

import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType

from ...config.checkpoint import CheckpointConfig
from ...utils.remote_urls import reason_of
from ..checkpoint import Checkpoint
from .identity import Foreign, Identity, identity_of, save_identity
from .remote import Remote
from .staging import Staged, clear_staging, stage
from .upload import GivenUp, Uploader

_LOG = logging.getLogger(__name__)
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""Between one try and the next while a remote takes nothing; each pause is twice as long as the last."""

_QUIET_SECONDS = 1.0  # of the wait at the end: nobody needs to be told of so little
_FAREWELL_SECONDS = 1.0


class Mirror:
    """Copies what a run saves to a remote folder; a context manager whose end waits a limited time.

    The training thread only makes second names for files. Of the checkpoints that wait to be copied only the
    newest is kept.

    Args:
        config: With `mirror` set.
        run_dir: Folder of the run, which this process has locked.

    Raises:
        UserError: If the identity in the folder is none that Reverie wrote.
        OSError: If the disk is full or fails.
    """

    def __init__(self, config: CheckpointConfig, run_dir: Path) -> None:
        assert config.mirror is not None
        clear_staging(run_dir)
        self._url, self._wait, self._run_dir = config.mirror, config.mirror_wait, run_dir
        self._identity: Identity = identity_of(run_dir)
        save_identity(self._identity, run_dir)
        self._changed = threading.Condition()  # guards what follows
        self._pending: Staged | None = None
        self._busy: Staged | None = None
        self._calls = 0  # of `_stage` and of the end: each ends a pause
        self._is_closed, self._is_foreign = False, False
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)

    def __enter__(self) -> "Mirror":
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the last copy, at most `checkpoint.mirror_wait` seconds, but not after a second Ctrl-C."""
        self._close(0.0 if kind is KeyboardInterrupt else self._wait)

    def saved(self, checkpoint: Checkpoint) -> None:
        """Copy a checkpoint that was just committed, and delete remotely what the run deleted.

        Cost: see `stage`; the copying itself is done by the thread.
        """
        self._stage(checkpoint, prunes=True)

    def catch_up(self, checkpoint: Checkpoint) -> None:
        """Copy the checkpoint from which a run goes on if the remote lacks it; deletes nothing.

        The remote may hold a newer one, whole, that is damaged here.
        """
        self._stage(checkpoint, prunes=False)

    def _stage(self, checkpoint: Checkpoint, prunes: bool) -> None:
        if self._is_foreign:
            return
        try:
            staged = stage(self._run_dir, checkpoint, self._calls, prunes)
        except OSError as error:
            _LOG.warning("step %s: not mirrored, %s", f"{checkpoint.step:,}", error)
            return
        with self._changed:
            overtaken, self._pending = self._pending, staged
            self._calls += 1
            self._changed.notify_all()
        if overtaken:
            overtaken.remove()

    def _close(self, seconds: float) -> None:
        with self._changed:
            self._calls += 1
            self._changed.notify_all()
            waited_for = self._pending or self._busy
        try:
            if waited_for and not self._is_done_within(min(seconds, _QUIET_SECONDS)):
                text = "waiting up to %g s for the copy of step %s; Ctrl-C ends that"
                _LOG.info(text, seconds, f"{waited_for.step:,}")
                self._is_done_within(seconds - _QUIET_SECONDS)
        finally:
            with self._changed:
                missing = None if self._is_done() or self._is_foreign else self._pending or self._busy
                self._is_closed = True
                self._changed.notify_all()
            self._thread.join(0 if missing else _FAREWELL_SECONDS)
            clear_staging(self._run_dir)
            if missing:
                self._tell_missing(missing.step)

    def _tell_missing(self, step: int) -> None:
        _LOG.warning(
            "the checkpoint of step %s is not on the mirror yet%s; continue with resume=%s, which catches up",
            f"{step:,}",
            f" ({self._trouble})" if self._trouble else "",
            os.path.relpath(self._run_dir),
        )

    def _is_done_within(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(self._is_done, max(0.0, seconds))

    def _is_done(self) -> bool:
        return self._is_foreign or not (self._pending or self._busy)

    def _work(self) -> None:
        """Copy what is pending until the end, in a thread.

        Whatever belongs to the remote is a local variable: the walks that look for leaks begin at the loop,
        pass through this object, and would see all objects of the network library.
        """
        remote = Remote(self._url, self._identity.name)
        uploader = Uploader(remote, self._identity, lambda: self._is_closed)
        self._attempt(uploader.begin, remote.shown)
        calls, pause = self._calls, FIRST_PAUSE_SECONDS
        while staged := self._next():
            if calls != self._calls:
                calls, pause = self._calls, FIRST_PAUSE_SECONDS
            if self._attempt(partial(uploader.upload, staged), remote.shown):
                self._put_down(staged)
            else:
                self._put_back(staged, calls, pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _next(self) -> Staged | None:
        """Take what is pending, or wait for it; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_closed or self._is_foreign)
            if self._is_closed or self._is_foreign:
                return None
            self._busy, self._pending = self._pending, None
            return self._busy

    def _put_down(self, staged: Staged) -> None:
        staged.remove()
        with self._changed:
            self._busy = None
            self._changed.notify_all()

    def _put_back(self, staged: Staged, calls: int, pause: float) -> None:
        """Let it be tried again after a pause, or at once after a call that came meanwhile."""
        with self._changed:
            is_overtaken = self._pending is not None
            self._pending, self._busy = self._pending or staged, None
            self._changed.wait_for(lambda: self._calls != calls or self._is_closed, pause)
        if is_overtaken:
            staged.remove()

    def _attempt(self, act: Callable[[], None], place: str) -> bool:
        """Return whether it worked; an outage is told when it begins and when it ends."""
        try:
            act()
        except GivenUp:
            return False
        except Foreign:
            _LOG.error("%s holds another run: nothing is mirrored; choose another checkpoint.mirror", place)
            with self._changed:
                self._is_foreign = True
                self._changed.notify_all()
            return False
        except Exception as error:
            if not self._trouble and not self._is_closed:
                text = "%s takes no copy now (%s); training goes on, and it is tried again"
                _LOG.warning(text, place, reason_of(error))
            self._trouble = reason_of(error)
            return False
        if self._trouble and not self._is_closed:
            _LOG.info("%s takes copies again", place)
        self._trouble = None
        return True
