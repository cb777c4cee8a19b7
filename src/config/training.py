"""Settings of the training loop."""

from dataclasses import dataclass, fields

from ..utils.errors import UserError


@dataclass(kw_only=True, slots=True)
class TrainingConfig:
    """Settings of the training loop; `configs/training/*.yaml` sets them. An interval of 0 is never.

    Some belong to one workflow alone; `workflow_settings.py` says which.
    """

    total_timesteps: int = 100_000
    """Agent steps of the run, over all environments together."""

    train_ratio: float = 256.0
    """Replayed steps trained on per agent step."""

    batch_size: int = 16
    """Windows per update."""

    sequence_length: int = 64
    """Trained steps per window, at least 2; the window also holds one earlier record for its context."""

    warmup_steps: int = 0
    """Agent steps during which only the world model is trained."""

    learning_starts: int = 1088
    """Agent steps before the first update; for a population, records in the replay."""

    log_interval: int = 1000
    """Agent steps between lines of metrics; at least 1."""

    checkpoint_interval: int = 10_000
    """Agent steps between checkpoints; the end of a run always leaves one."""

    max_nonfinite: int = 10
    """Updates in a row with a loss or gradient that is not finite, none of which is applied, before the run
    goes back to its newest checkpoint; the second time it stops with exit code 4."""

    keep_checkpoints: int = 2
    """Newest checkpoints kept on disk."""

    evaluation_interval: int = 0
    """Agent steps between evaluations."""

    evaluation_episodes: int = 10
    """Episodes of one evaluation."""

    video_interval: int = 10_000
    """Agent steps between videos of an episode and of open-loop predictions."""

    max_updates_owed: int = 64
    """Most updates made at once; what a stall owes beyond it is forgiven."""

    generations: int = 25
    """Generations of a population, unless `total_timesteps` are taken before."""

    gradient_steps_per_generation: int = 32
    """Updates of each member of a population in a generation."""

    gradient_accumulation_steps: int = 6
    """Batches whose gradients each of these updates adds up."""

    def __post_init__(self) -> None:
        may_be_zero = ("warmup_steps", "checkpoint_interval", "evaluation_interval", "video_interval")
        for item in fields(self):
            # Two steps at least: the return of a replayed step is made of what follows it.
            limit = 0 if item.name in may_be_zero else 2 if item.name == "sequence_length" else 1
            value = getattr(self, item.name)
            if item.type is int and value < limit:
                raise UserError(f"training.{item.name} must be at least {limit}, got {value}.")
        for name, most in (("batch_size", 1_000_000), ("gradient_accumulation_steps", 1000)):
            if getattr(self, name) > most:
                raise UserError(f"training.{name} must be at most {most}, got {getattr(self, name)}.")
        if self.train_ratio <= 0:
            raise UserError(f"training.train_ratio must be > 0, got {self.train_ratio}.")

    @property
    def planned_updates(self) -> int:
        """Updates of the whole run; the first is made at once."""
        steps = self.total_timesteps - self.learning_starts
        return 1 + int(steps * self.updates_per_step) if steps >= 0 else 0

    @property
    def updates_per_step(self) -> float:
        """Updates per agent step."""
        return self.train_ratio / (self.batch_size * self.sequence_length)
