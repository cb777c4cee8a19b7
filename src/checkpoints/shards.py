"""Folders and checkpoints of a run with several ranks.

    <run>/                  rank 0: configuration, networks, and its part of the replay and acting state
    <run>/ranks/001/        rank 1: the same files, but only the acting state instead of the networks

Rank 0 writes its checkpoint last, so if rank 0 has a checkpoint, all ranks have their complete parts.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..config.schema import TrainConfig
from ..utils.durable_io import read_regular, reading, replace_file
from ..utils.errors import UserError
from ..utils.logging.config import ProgressMode, WandbMode
from ..utils.logging.json_lines import METRICS_FILE, read_lines
from ..utils.ranks import Ranks
from .checkpoint import CHECKPOINTS, SHARED_FOLDER, Checkpoint, list_checkpoints
from .run_folder import checkpoint_of, create_run_folder, load_run

if TYPE_CHECKING:
    from ..buffers import EpisodeReplayBuffer

RANKS = "ranks"
TORCHRUN_FILE = ".torchrun"
RANKS_KEY = "ranks"
"""Key of the number of ranks in the training loop's state."""


def create_folder_of_rank(config: TrainConfig, ranks: Ranks) -> Path:
    """Create this rank's run folder and set `config.run_dir`. Only rank 0 writes logs and event files."""
    root = Path(ranks.text_of_first(str(create_run_folder(config)) if ranks.is_first else ""))
    folder = folder_of_rank(root, ranks.index)
    config.run_dir = str(folder)
    if not ranks.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        logger = config.logger
        logger.tensorboard, logger.wandb, logger.progress = False, WandbMode.off, ProgressMode.plain
    return folder


def note_torchrun(folder: Path) -> None:
    """Record in a rank's folder which `torchrun` started the run, unless it never restarts workers."""
    if name := _torchrun():
        replace_file(folder / TORCHRUN_FILE, [name.encode()])


def was_begun_here(run_dir: Path) -> bool:
    """Return whether the run in this folder was started by the same `torchrun` as this process."""
    notes = [run_dir / TORCHRUN_FILE, *run_dir.glob(f"{RANKS}/*/{TORCHRUN_FILE}")]
    name = _torchrun().encode()
    return any(name == read_regular(note) for note in notes if name and note.is_file())


def _torchrun() -> str:
    """Return torchrun's folder name to identify the launch, or "" if workers are never restarted."""
    may_restart = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    return os.environ.get("TORCHELASTIC_ERROR_FILE", "").rpartition("/attempt_")[0] if may_restart else ""


def checkpoint_of_rank(config: TrainConfig, run_dir: Path, ranks: Ranks) -> Checkpoint | None:
    """Return this rank's part of the newest checkpoint that is intact on all ranks, or `None`.

    If a different number of ranks wrote it, environments and their streams are redistributed.

    Raises:
        UserError: If all checkpoints are damaged or have been moved, or this number of ranks cannot share the
            run.
    """
    whole, known = None, ""
    if ranks.is_first and list_checkpoints(run_dir):
        whole = checkpoint_of(config, run_dir, _verify)
        known = f"{whole.step} {_ranks_of(whole)}"
    elif ranks.is_first:
        _require_none_was_moved(run_dir)
    known = ranks.text_of_first(known)
    if not known:
        return None
    step, size = map(int, known.split())
    if whole is not None and size == ranks.size == 1:
        return whole
    root = folder_of_run(run_dir, ranks)
    parts = [_part(folder_of_rank(root, index), step) for index in range(size)]
    if size == ranks.size:
        return PartOfRun(parts[ranks.index].folder, step, parts[0])
    count = ranks.part(config.env.num_envs)
    return DividedAnew(parts[0].folder, step, tuple(parts), ranks.index * count, count)


def _require_none_was_moved(run_dir: Path) -> None:
    """Raise `UserError` if a run's checkpoints are missing, because a new start would overwrite its log."""
    interval = load_run(str(run_dir), key="resume", trust=True).training.checkpoint_interval
    log, folder = run_dir / METRICS_FILE, run_dir / CHECKPOINTS
    if not interval or folder.exists() or not log.exists():
        return
    last = max((line["step"] for line in read_lines(log)), default=0)
    if last > interval:
        raise UserError(
            f"{run_dir} has no folder {CHECKPOINTS}, but its {METRICS_FILE} reaches step {last:,}, "
            f"beyond training.checkpoint_interval={interval:,}. Restore {folder}, or start a new run."
        )


@dataclass(frozen=True, slots=True)
class PartOfRun(Checkpoint):
    """A rank's part of a checkpoint written by the same number of ranks."""

    first: Checkpoint
    """The part of rank 0, with the networks."""

    def model(self, device: torch.device) -> dict[str, Any]:
        """Return the networks and this rank's acting state."""
        own = Checkpoint.model(self, device)
        return own if self.first.folder == self.folder else self.first.model(device) | own


@dataclass(frozen=True, slots=True)
class DividedAnew(Checkpoint):
    """One rank's share of a checkpoint written by a different number of ranks.

    Networks, records, latents and open episodes are restored exactly. Windows are drawn with new generators.
    """

    parts: tuple[Checkpoint, ...]

    begin: int
    """Index of this rank's first environment in the run."""

    count: int
    """Number of this rank's environments."""

    def state(self) -> dict[str, Any]:
        """Return the training loop's state with this rank's environments."""
        states = [part.state() for part in self.parts]
        whole = states[0]
        whole["environment"] = self._environment([state["environment"] for state in states])
        episodes = [state["episodes"] for state in states]
        whole["episodes"] = {name: self._own([each[name] for each in episodes]) for name in episodes[0]}
        # The state of a sampler belongs to the records of one part.
        whole["sampler"] = {}
        if self.begin:
            whole["recorder"] = {"wanted": False, "frames": None}
        return whole

    def model(self, device: torch.device) -> dict[str, Any]:
        """Return the networks and the acting state of this rank's environments."""
        models = [part.model(device) for part in self.parts]
        rows = {name: [model["online"][name] for model in models] for name in models[0]["online"]}
        own = slice(self.begin, self.begin + self.count)
        online = {
            name: None if found[0] is None else torch.cat(found)[own].clone() for name, found in rows.items()
        }
        return models[0] | {"online": online}

    def restore_replay(self, replay: "EpisodeReplayBuffer") -> None:
        """Load the streams of this rank's environments into `replay`."""
        folders = [(part.folder, part.folder.parent / SHARED_FOLDER) for part in self.parts]
        replay.load_streams(folders, self.begin)

    def _environment(self, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Select the state of this rank's environments from the states of all parts."""
        own = slice(self.begin, self.begin + self.count)
        numbers = {
            name: [number for state in states for number in state[name]][own]
            for name in ("next_episode", "seeds")
        }
        actions = [each for state in states for each in state["actions"].values()][own]
        arrivals = [state["arrival"] for state in states]
        arrival = {name: self._own([each[name] for each in arrivals]) for name in arrivals[0]}
        named = {f"env{index:03d}": each for index, each in enumerate(actions)}
        return {**numbers, "actions": named, "arrival": arrival}

    def _own(self, found: list[Any]) -> Any:
        """Select this rank's rows from the arrays (or dictionaries of arrays) of all parts."""
        if isinstance(found[0], dict):
            return {name: self._own([each[name] for each in found]) for name in found[0]}
        return np.concatenate(found)[self.begin : self.begin + self.count].copy()


def folder_of_rank(root: Path, index: int) -> Path:
    """Return a rank's folder in the shared run folder."""
    return root / RANKS / f"{index:03d}" if index else root


def folder_of_run(folder: Path, ranks: Ranks) -> Path:
    """Return the shared run folder. `folder` is this folder, or this rank's folder inside it."""
    return folder if ranks.is_first or folder.parent.name != RANKS else folder.parents[1]


def _verify(first: Checkpoint) -> None:
    """Verify the parts of all ranks. See `Checkpoint.verify` for errors."""
    first.verify()
    for index in range(1, _ranks_of(first)):
        _part(folder_of_rank(first.folder.parents[1], index), first.step).verify()


def _ranks_of(first: Checkpoint) -> int:
    """Return the number of ranks that wrote a checkpoint."""
    with reading(first.state_path):
        return int(first.state().get(RANKS_KEY, 1))


def _part(folder: Path, step: int) -> Checkpoint:
    return Checkpoint(folder / CHECKPOINTS / f"step_{step:09d}", step)
