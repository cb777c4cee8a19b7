"""Faults outside Python memory: native memory, shared memory, files and processes."""

import ctypes
import os
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory

from reverie.orchestration.world_model_orchestrator import WorldModelOrchestrator
from reverie.testing.faults import attach

from .wrap import after_update

NATIVE_BYTES = 100_000
SHARED_BYTES = 1_000_000


def native_memory(run: WorldModelOrchestrator) -> None:
    """Allocate memory from the C library and lose the pointer, as a faulty extension would."""
    library = ctypes.CDLL(None)
    library.calloc.restype = ctypes.c_void_p
    after_update(run, lambda _: library.calloc(1, NATIVE_BYTES))


def shared_memory(run: WorldModelOrchestrator) -> None:
    """Create a block of shared memory at each update without closing any."""
    kept = attach(run, "shared", [])

    def create(_: object) -> None:
        block = SharedMemory(create=True, size=SHARED_BYTES)
        assert block.buf is not None
        # Untouched memory would not count.
        block.buf[:] = bytes(SHARED_BYTES)
        # The name is removed immediately, so that no block outlives this process.
        block.unlink()
        kept().append(block)

    after_update(run, create)


def files_left_open(run: WorldModelOrchestrator) -> None:
    """Open a file at each update without closing any."""
    kept = attach(run, "descriptors", [])
    after_update(run, lambda _: kept().append(os.open(os.devnull, os.O_RDONLY)))


def processes_left_running(run: WorldModelOrchestrator) -> None:
    """Start a worker at every tenth update without stopping any."""
    kept = attach(run, "workers", [])

    def start(_: object) -> None:
        if run.updates % 10 == 0:
            # The worker ends with this process.
            command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
            kept().append(subprocess.Popen(command, stdin=subprocess.PIPE))

    after_update(run, start)
