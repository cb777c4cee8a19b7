"""Fork a training process for each request, so that it starts without import times.

The child is an ordinary process with its own session, output, limits and exit code. Its environment processes
import this file, so torch is imported in a function.
"""

import array
import ctypes
import gc
import json
import os
import resource
import runpy
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOY_WORLD = Path(__file__).parents[1] / "envs"
CAP_DAC_OVERRIDE = 1
CAPABILITY_VERSION = 0x20080522
PR_SET_PDEATHSIG = 1


def obey_permissions() -> None:
    """Give up root's right to ignore permissions, if the process has it."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    # The effective, permitted and inheritable sets.
    for index in range(3):
        data[index] &= ~(1 << CAP_DAC_OVERRIDE)
    assert libc.capset(header, data) == 0


def become(request: dict[str, Any], outputs: list[int]) -> None:
    """Apply the request to this process. It is killed when the server ends, e.g. if pytest was killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    os.setsid()
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
        os.close(output)
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    # TMPDIR may have changed.
    tempfile.tempdir = None
    if request["file_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_bytes"], request["file_bytes"]))
    if request["obeys_permissions"]:
        obey_permissions()
    sys.argv = request["command"]


def commands() -> dict[str, Callable[[], object]]:
    """Return the available commands, after one run that has imported all modules of runs."""
    import torch

    from reverie.commands.entry import certify, evaluate, plan, train

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = [*sys.argv, f"run_dir={folder}/run"]
        train()

    def train_as_on_macos() -> None:
        from as_on_macos import become_macos

        become_macos()
        train()

    def script() -> None:
        del sys.argv[0]
        sys.path.insert(0, str(Path(sys.argv[0]).absolute().parent))
        runpy.run_path(sys.argv[0], run_name="__main__")

    own = {"evaluate": evaluate, "plan": plan, "certify": certify, "script": script}
    return {"train": train, "train_as_on_macos": train_as_on_macos, **own}


def main(connection: socket.socket) -> None:
    """Answer requests until the other side disconnects. A child exits on its own."""
    main_of = commands()
    gc.collect()
    # Garbage collection would touch and copy all memory shared with the children.
    gc.freeze()
    connection.send(b"ready")
    while True:
        text, sent, *_ = connection.recvmsg(1 << 20, socket.CMSG_LEN(8))
        if not text:
            return
        request = json.loads(text)
        if "pid" in request:
            status = os.waitpid(request["pid"], 0)[1]
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        outputs = array.array("i", sent[0][2]).tolist()
        with warnings.catch_warnings():
            # The warning is about a fork with threads, but this process has one thread.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            connection.close()
            become(request, outputs)
            main_of[request["command"][0]]()
            return
        for output in outputs:
            os.close(output)
        connection.send(str(pid).encode())


if __name__ == "__main__":
    sys.path.append(str(TOY_WORLD))
    handle = int(sys.argv.pop(1))
    main(socket.socket(fileno=handle))
