"""Clean up after a Ray cluster, however the process that started it ended, which Ray itself does not.

Runs as a separate process from its file, `python ray_reaper.py FOLDER PARENT`, until its standard input, a
pipe that only the parent holds, ends. All of Ray's processes have a log in the folder open.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_ROUNDS, _ROUND_SECONDS = 50, 0.1


def users_of(folder: str, spared: set[int]) -> Iterator[int]:
    """Yield the ids of the processes that have a file in `folder` open, except for `spared`."""
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) not in spared:
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if any(os.readlink(file).startswith(f"{folder}/") for file in (entry / "fd").iterdir()):
                    yield int(entry.name)


def cleanup(folder: str, parent: int) -> None:
    """Kill the cluster's processes until none is left, and delete its folder."""
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
    cleanup(sys.argv[1], int(sys.argv[2]))
