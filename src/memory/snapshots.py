"""CUDA memory snapshots of a training run. Their cost does not depend on the length of the run."""

from pathlib import Path

import torch

from ..utils.durable_io import replacing


class SnapshotRecorder:
    """Writes `snapshot_step_<N>.pickle` to a folder. The first snapshot creates the folder.

    Live blocks include the Python stack of their allocation, except in the backward pass (C++ threads).
    History would leak several kB of host memory per entry, so it is disabled. Without CUDA, methods have no
    effect.

    Each allocation takes about 2 us longer.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self) -> None:
        """Record the stacks of later allocations in this process. Call this before the first allocation."""
        if torch.cuda.is_available():
            torch.cuda.memory._record_memory_history(
                enabled="state", context="state", stacks="python", max_entries=1
            )

    def save(self, step: int) -> Path | None:
        """Save the current memory as the snapshot of `step`, atomically. Return `None` without CUDA.

        For 400,000 blocks, this takes 25 MB of disk and a few seconds. A few blocks take less than 1 MB.

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
