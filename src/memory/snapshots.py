"""Save CUDA memory snapshots of a training run, at a cost that does not depend on its length."""

from pathlib import Path

import torch

from ..utils.durable_io import replacing


class SnapshotRecorder:
    """Write `snapshot_step_<N>.pickle` to a folder. The first snapshot creates it.

    Live blocks include the Python stack of their allocation, except in the backward pass (C++ threads).
    History would leak several kB of host memory per entry and is off. Without CUDA, methods have no effect.

    Cost: about 2 us per allocation.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self) -> None:
        """Record the stack of every later allocation in this process. Call this before the first one."""
        if torch.cuda.is_available():
            torch.cuda.memory._record_memory_history(
                enabled="state", context="state", stacks="python", max_entries=1
            )

    def save(self, step: int) -> Path | None:
        """Atomically save the current memory as the snapshot of `step`. Return None without CUDA.

        Cost: 25 MB of disk and a few seconds for 400,000 blocks; less than 1 MB for few blocks.

        Raises:
            OSError: If the file cannot be written.
        """
        if not torch.cuda.is_available():
            return None
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"snapshot_step_{step}.pickle"
        with replacing(path) as unfinished:
            torch.cuda.memory._dump_snapshot(str(unfinished))
        return path
