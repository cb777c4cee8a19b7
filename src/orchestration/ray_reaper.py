"""Clean up after a Ray cluster, however the process that started it ended, which Ray itself does not.

Runs as a separate process from its file, `python ray_reaper.py FOLDER PARENT`, until its standard input, a
pipe that only the parent holds, ends. All of Ray's processes have the folder in their arguments, or a log in
it open.
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
    """Yield the ids of the processes that name `folder` or have a file in it open, except for `spared`."""
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) not in spared:
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                # A process that has only just started has opened no file yet.
                is_named = f"{folder}/".encode() in (entry / "cmdline").read_bytes().replace(b"\0", b"/")
                files = (entry / "fd").iterdir()
                if is_named or any(os.readlink(file).startswith(f"{folder}/") for file in files):
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
