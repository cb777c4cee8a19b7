"""A folder of replays saved as in checkpoints, and a full copy of a buffer for comparison."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reverie.buffers import EpisodeReplayBuffer, SavedReplay

from .reference import held_values


@dataclass
class Saves:
    """Consecutive saves of one buffer, of which the newest `keep` stay loadable."""

    root: Path
    keep: int = 2
    kept: list[tuple[Path, SavedReplay]] = field(default_factory=list)
    count: int = 0

    @property
    def shared(self) -> Path:
        return self.root / "replay"

    def save(self, buffer: EpisodeReplayBuffer) -> SavedReplay:
        """Save and commit, then delete files that the newest saves do not need."""
        folder, saved = self.write(buffer)
        buffer.commit(saved)
        self.kept = [*self.kept, (folder, saved)][-self.keep :]
        self.clean()
        return saved

    def write(self, buffer: EpisodeReplayBuffer) -> tuple[Path, SavedReplay]:
        """Save without a commit, as a run does that fails before its checkpoint is complete."""
        folder = self.root / f"save_{self.count}"
        self.count += 1
        folder.mkdir(parents=True)
        self.shared.mkdir(exist_ok=True)
        return folder, buffer.save(folder, self.shared)

    def clean(self) -> None:
        needed = {name for _, saved in self.kept for name in saved.shared}
        for path in self.shared.iterdir():
            if path.name not in needed:
                path.unlink()
        for folder in self.root.glob("save_*"):
            if folder not in [kept for kept, _ in self.kept]:
                shutil.rmtree(folder)

    def load(self, buffer: EpisodeReplayBuffer, which: int = -1) -> EpisodeReplayBuffer:
        buffer.load(self.kept[which][0], self.shared)
        return buffer

    def bytes_of(self, which: int = -1) -> dict[str, int]:
        """Return the sizes of a save's own and shared files."""
        folder, saved = self.kept[which]
        paths = [*folder.iterdir(), *(self.shared / name for name in saved.shared)]
        return {path.name: path.stat().st_size for path in paths}


def full_copy(buffer: EpisodeReplayBuffer) -> dict[str, Any]:
    """Return a copy of a buffer's contents and of its future random choices, value by value."""
    index = buffer._index
    starts = [] if index.starts is None else [_starts(buffer, env) for env in range(len(index.records.head))]
    return {
        "fields": {name: held_values(buffer, name) for name in buffer.plan.fields},
        "begins": torch.from_numpy(index.begins[index.in_order()[0]]),
        "index": index.state_dict(),
        "starts": starts,
        "generator": buffer._generator.bit_generator.state,
        "counts": (buffer.num_windows, buffer._index.num_episodes, buffer.total_steps),
    }


def same_content(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Return whether two copies are equal, bit for bit."""
    fields = a["fields"].keys() == b["fields"].keys() and all(
        torch.equal(values.view(-1).view(torch.uint8), b["fields"][name].view(-1).view(torch.uint8))
        for name, values in a["fields"].items()
    )
    rest = [name for name in a if name not in ("fields", "begins")]
    return fields and torch.equal(a["begins"], b["begins"]) and all(a[name] == b[name] for name in rest)


def _starts(buffer: EpisodeReplayBuffer, env: int) -> list[int]:
    starts = buffer._index.starts
    assert starts is not None
    ranks = np.arange(int(starts.queues.lengths[env]))
    return starts.at(np.full(len(ranks), env), ranks).tolist()
