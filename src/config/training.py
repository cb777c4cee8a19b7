"""Settings of the training loop that every workflow reads."""

from dataclasses import dataclass

from ..utils.ranges import require_range


@dataclass(kw_only=True, slots=True)
class TrainingConfig:
    """Length, batches and checkpoints of a run; an interval of 0 is never."""

    total_timesteps: int = 100_000
    """Agent steps of the run, over all environments together."""

    batch_size: int = 16
    """Windows per update; for a population, transitions per batch."""

    learning_starts: int = 1088
    """Agent steps before the first update; for a population, records in the replay."""

    checkpoint_interval: int = 10_000
    """Agent steps between checkpoints; the end of a run always leaves one."""

    keep_checkpoints: int = 2
    """Newest checkpoints kept on disk."""

    def __post_init__(self) -> None:
        names = ("total_timesteps", "batch_size", "learning_starts", "keep_checkpoints")
        require_range("training", self, *names, ge=1)
        require_range("training", self, "batch_size", le=1_000_000)
        require_range("training", self, "checkpoint_interval", ge=0)
