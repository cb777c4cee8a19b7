"""Interrupt the writing of a checkpoint at every file operation: `interrupted_save.py kill fail full`.

A child process saves a checkpoint and is killed before its n-th file operation, for every n. In other modes
the operation fails like on a full disk, or the kernel ends the process when a file exceeds a limit.
Afterwards the previous or the new checkpoint must be loadable, bit for bit, and the run must be able to
continue. The program prints the number of interruptions for each mode.
"""

import errno
import os
import resource
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from reverie.buffers import EpisodeReplayBuffer
from reverie.checkpoints.checkpoint import latest_checkpoint, list_checkpoints, save_checkpoint

from ..buffers.reference import ToyWorld, advance, make_buffer
from ..buffers.saved import full_copy, same_content

OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link"}
FINISHED, INTERRUPTED, WRONG = 0, 3, 4
KEEP, STEP_BEFORE = 2, 20
# It does not wait for a disk, and the order of operations is the same.
MEMORY = "/dev/shm"
LIMITS = (0, 50, 200, 500, 1_000, 2_000, 4_000, 6_000, 10_000)


class Interruption:
    """Calls `strike` once, before the n-th operation on a file in `folder`."""

    def __init__(self, folder: Path, n: int, strike: Callable[[], None]) -> None:
        self.folder, self.left, self.strike = str(folder), n, strike
        sys.addaudithook(self)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self.left and event in OPERATIONS and str(args[0]).startswith(self.folder):
            self.left -= 1
            if not self.left:
                self.strike()


def buffer() -> EpisodeReplayBuffer:
    return make_buffer(num_envs=2, capacity=60, chunk_length=4)


def state_of(step: int, updates: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"updates": updates}, {"weight": torch.full((500,), float(updates)), "step": step}


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def child(run_dir: Path, replay: EpisodeReplayBuffer, step: int, mode: str, n: int) -> int:
    """Save and be interrupted. After an error, continue like a run that encounters it."""
    if mode == "full":
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        if n <= len(LIMITS):
            resource.setrlimit(resource.RLIMIT_FSIZE, (LIMITS[n - 1], LIMITS[n - 1]))
        save_checkpoint(run_dir, step, *state_of(step, 2), replay, KEEP)
        return FINISHED
    interruption = Interruption(run_dir, n, kill if mode == "kill" else fail)
    try:
        save_checkpoint(run_dir, step, *state_of(step, 2), replay, KEEP)
    except OSError as error:
        assert error.errno == errno.ENOSPC
    if interruption.left:
        return FINISHED
    advance(replay, ToyWorld(2, 500), 9, np.random.default_rng(n))
    save_checkpoint(run_dir, 40, *state_of(40, 3), replay, KEEP)
    loaded = buffer()
    latest_checkpoint(run_dir).restore_replay(loaded)
    return INTERRUPTED if same_content(full_copy(loaded), full_copy(replay)) else WRONG


def check(run_dir: Path, step: int, copies: dict[int, dict[str, Any]]) -> None:
    """Load the files of a killed process and continue. `copies` are replays by number of updates."""
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
    newest = latest_checkpoint(run_dir)
    assert before == {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}, "reading changed files"
    updates = newest.state()["updates"]
    assert newest.step == (step if updates == 2 else STEP_BEFORE)
    assert (newest.model(torch.device("cpu"))["weight"] == updates).all()
    replay = buffer()
    newest.restore_replay(replay)
    assert same_content(full_copy(replay), copies[updates])
    advance(replay, ToyWorld(2, 900), 9, np.random.default_rng(0))
    save_checkpoint(run_dir, 50, *state_of(50, 4), replay, KEEP)
    loaded = buffer()
    latest_checkpoint(run_dir).restore_replay(loaded)
    assert same_content(full_copy(loaded), full_copy(replay))
    checkpoints = list_checkpoints(run_dir)
    assert [checkpoint.step for checkpoint in checkpoints] == [newest.step, 50]
    for checkpoint in checkpoints:
        checkpoint.verify()
    needed = {Path(name).name for checkpoint in checkpoints for name in checkpoint.manifest()["files"]}
    assert {path.name for path in (run_dir / "checkpoints" / "replay").iterdir()} <= needed
    left = {path.name for path in (run_dir / "checkpoints").iterdir()}
    assert left == {"replay", *(checkpoint.folder.name for checkpoint in checkpoints)}


def interrupt(folder: Path, mode: str, step: int) -> int:
    """Interrupt the save of `step` in every possible way, and return the number of ways."""
    run_dir, original = folder / "run", folder / "original"
    run_dir.mkdir()
    replay, world, chance = buffer(), ToyWorld(2), np.random.default_rng(0)
    for earlier in (10, STEP_BEFORE):
        advance(replay, world, 25, chance)
        save_checkpoint(run_dir, earlier, *state_of(earlier, 1), replay, KEEP)
    copies = {1: full_copy(replay)}
    advance(replay, world, 25, chance)
    copies[2] = full_copy(replay)
    run_dir.rename(original)
    for n in range(1, 10_000):
        shutil.rmtree(run_dir, ignore_errors=True)
        shutil.copytree(original, run_dir)
        pid = os.fork()
        if not pid:
            try:
                code = child(run_dir, replay, step, mode, n)
            except BaseException:
                traceback.print_exc()
                code = WRONG
            os._exit(code)
        status = os.waitpid(pid, 0)[1]
        code = os.waitstatus_to_exitcode(status)
        expected = {"kill": -signal.SIGKILL, "fail": INTERRUPTED, "full": -signal.SIGXFSZ}[mode]
        assert code in (FINISHED, expected), f"{mode} {n}: exit code {code}"
        if code != INTERRUPTED:
            check(run_dir, step, copies)
        if code == FINISHED and (mode != "full" or n > len(LIMITS)):
            return n - 1
    raise AssertionError("never finished")


def main() -> None:
    torch.set_num_threads(1)
    # The warning is about a fork with running threads, but these threads are idle.
    warnings.simplefilter("ignore", DeprecationWarning)
    for mode in sys.argv[1:]:
        counts = []
        # A new step, and a step that replaces an existing checkpoint.
        for step in (
            30,
            STEP_BEFORE,
        ):
            with TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else None) as folder:
                counts.append(interrupt(Path(folder), mode, step))
        print(mode, *counts)


if __name__ == "__main__":
    main()
