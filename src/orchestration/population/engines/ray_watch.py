"""Stays beside a Ray cluster and tidies up after it, however the process that started it ended.

A process of its own, run as a file: `python ray_watch.py FOLDER PARENT`. Its standard input is a pipe that
only the parent holds; when that ends, so has the parent or the cluster. Then every process that has a file of
the folder open, as all of Ray's have their logs, is killed, and the folder is deleted. Ray itself leaves its
agents running for a while after a parent that was killed, and its folder for ever.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PROCESSES = Path("/proc")
_ROUNDS = 50
_ROUND_SECONDS = 0.1


def users_of(folder: str, spared: set[int]) -> Iterator[int]:
    """Yield the ids of the processes that have a file in `folder` open, but for those spared."""
    for entry in _PROCESSES.iterdir() if _PROCESSES.is_dir() else ():
        if entry.name.isdecimal() and int(entry.name) not in spared:
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if any(os.readlink(file).startswith(f"{folder}/") for file in (entry / "fd").iterdir()):
                    yield int(entry.name)


def tidy_up(folder: str, parent: int) -> None:
    """Kill the cluster's processes until there are none, and delete its folder."""
    spared = {os.getpid(), parent}
    for _ in range(_ROUNDS):
        left = list(users_of(folder, spared))
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        if not left and not Path(folder).exists():
            return
        time.sleep(_ROUND_SECONDS)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    tidy_up(sys.argv[1], int(sys.argv[2]))
