"""Clean up after a local Ray cluster, even if the process that started it was killed.

This file runs as a separate process, `python ray_reaper.py FOLDER PARENT`. It waits until its standard input
closes. The other end of this pipe is open only in the parent. All of Ray's processes either have the folder
in their arguments or have a log in it open.
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
    """Yield ids of processes with `folder` in their arguments or an open file in it, except for `spared`."""
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) not in spared:
            # The process may have ended or belong to another user.
            with contextlib.suppress(OSError):
                # A process that has just started has no open files yet, so its arguments are checked too.
                is_named = f"{folder}/".encode() in (entry / "cmdline").read_bytes().replace(b"\0", b"/")
                files = (entry / "fd").iterdir()
                if is_named or any(os.readlink(file).startswith(f"{folder}/") for file in files):
                    yield int(entry.name)


def cleanup(folder: str, parent: int) -> None:
    """Kill all of the cluster's processes and delete its folder, retrying for a few seconds."""
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
