"""The folders and checkpoints of a run that several ranks share.

    <run>/                  the first rank's: the configuration, the networks, its part of replay and acting
    <run>/ranks/001/        another rank's: the same files, but of the networks only the state of acting

The first rank writes its checkpoint last, so a step that it has is whole on all ranks.
"""

from pathlib import Path

from ..config.schema import TrainConfig
from ..utils.durable_io import Damaged, reading
from ..utils.errors import UserError
from ..utils.logging import ProgressMode, WandbMode
from ..utils.ranks import Ranks
from ..workflows import Agent
from .checkpoint import CHECKPOINTS, Checkpoint, list_checkpoints
from .run_folder import checkpoint_of, create_run_folder

RANKS = "ranks"
RANKS_KEY = "ranks"
"""Where the state of the loop has the number of ranks."""


def create_folder_of_rank(config: TrainConfig, ranks: Ranks) -> Path:
    """Create this rank's folder of a run, set `config.run_dir` to it and return it.

    All but the first rank show nothing on the terminal, and write no event files.
    """
    root = ranks.text_of_first(str(create_run_folder(config)) if ranks.is_first else "")
    folder = Path(root)
    if not ranks.is_first:
        folder = folder / RANKS / f"{ranks.index:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        logger = config.logger
        logger.tensorboard, logger.wandb, logger.progress = False, WandbMode.off, ProgressMode.plain
    config.run_dir = str(folder)
    return folder


def checkpoint_of_rank(config: TrainConfig, run_dir: Path, ranks: Ranks) -> Checkpoint | None:
    """Return this rank's part of the newest whole checkpoint of a run; None if it has none yet.

    Raises:
        UserError: If another number of ranks made it, or this rank's part is damaged.
    """
    found, known = None, ""
    if ranks.is_first and list_checkpoints(run_dir):
        found = checkpoint_of(config, run_dir)
        with reading(found.state_path):
            known = f"{found.step} {found.state().get(RANKS_KEY, 1)}"
    known = ranks.text_of_first(known)
    if not known:
        return None
    step, size = map(int, known.split())
    if size != ranks.size:
        raise UserError(
            f"{run_dir} was trained by {_count(size)}, not by {_count(ranks.size)}. Continue it with "
            f"{f'torchrun --nproc-per-node {size}' if size > 1 else 'one process'}."
        )
    if ranks.is_first:
        return found
    part = Checkpoint(run_dir / CHECKPOINTS / f"step_{step:09d}", step)
    try:
        part.verify()
    except Damaged as fault:
        raise UserError(f"rank {ranks.index} cannot continue from step {step}: {fault}.") from fault
    return part


def restore_workflow(part: Checkpoint, workflow: Agent, ranks: Ranks) -> None:
    """Copy the saved state into a workflow: the networks of the first rank, this rank's state of acting."""
    if ranks.is_first:
        return part.restore_workflow(workflow)
    root = part.folder.parents[3]
    whole = Checkpoint(root / CHECKPOINTS / part.folder.name, part.step)
    state = whole.model(workflow.device) | part.model(workflow.device)
    with reading(part.folder):
        workflow.load_state_dict(state)


def _count(ranks: int) -> str:
    return "one process" if ranks == 1 else f"{ranks} ranks"
