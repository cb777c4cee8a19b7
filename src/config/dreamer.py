"""Settings of a Dreamer run beyond the common settings."""

# pyright: reportIncompatibleVariableOverride=false
# Sections are subclasses of the common sections, and fields are never assigned a base-class instance.

import math
from dataclasses import dataclass, field

from ..envs.config import Suite
from ..models import ModelConfig, OptimizerConfig
from ..utils.errors import UserError, require_package, require_range
from ..utils.units import count_text
from ..workflows.world_models import ControllerConfig, WorldModelConfig
from ..workflows.world_models.config import Objective
from .schema import TrainConfig, TrainingConfig


@dataclass(kw_only=True)
class DreamerTraining(TrainingConfig):
    """Settings of Dreamer's training loop."""

    train_ratio: float = 256.0
    """Number of replayed steps that are trained on per agent step."""

    sequence_length: int = 64
    """Trained steps per window, from 2 to 1024 because a run's memory plan simulates all of them. A window
    also contains one earlier record as context."""

    offline: bool = False
    """Train only on the replay buffer, filled by `buffer.prefill` or a resumed run. Environments step only
    during evaluations, but agent steps are counted as if environments were stepping."""

    overlap: bool = False
    """Step environments in a separate thread during updates. Results are bit-identical. This is
    faster if environments are slow or updates run on a GPU."""

    warmup_steps: int = 0
    """Agent steps during which only the world model is trained."""

    log_interval: int = 1000
    """Agent steps between log lines of metrics."""

    evaluation_interval: int = 0
    """Agent steps between evaluations."""

    evaluation_episodes: int = 10
    """Number of episodes per evaluation."""

    target_return: float | None = None
    """Mean return at which the run ends with a checkpoint, or null. It is compared with the mean of each
    evaluation, or with the mean of the last 20 training episodes if `evaluation_interval` is 0."""

    video_interval: int = 10_000
    """Agent steps between videos of an episode and of open-loop predictions."""

    max_consecutive_nonfinite: int = 10
    """Number of updates skipped in a row (for a non-finite loss or gradient) before the run rolls back to its
    newest checkpoint. If this happens again, the run stops with exit code 4."""

    max_updates_per_step: int = 64
    """Maximum number of updates after one step of all environments. Further due updates are dropped."""

    rank_timeout: float = 20.0
    """Seconds that a process of torchrun waits for the others during an update before it exits with code 8.
    While one of them compiles, evaluates or saves, the others wait as long as it sends heartbeats."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range("training", self, "rank_timeout", gt=0, le=3600)
        intervals = ("warmup_steps", "evaluation_interval", "video_interval")
        counts = ("log_interval", "evaluation_episodes", "max_consecutive_nonfinite", "max_updates_per_step")
        require_range("training", self, *intervals, ge=0)
        require_range("training", self, *counts, ge=1)
        # The return of a replayed step depends on the following steps, so a window needs at least two.
        require_range("training", self, "sequence_length", ge=2, le=1024)
        require_range("training", self, "train_ratio", gt=0)
        if self.target_return is not None and self.offline and not self.evaluation_interval:
            raise UserError(
                f"training.target_return={self.target_return:g} is compared with evaluations, because "
                "training.offline=true plays no training episodes. Set training.evaluation_interval."
            )
        if self.overlap and self.offline:
            raise UserError(
                "training.overlap=true steps environments during updates, but training.offline=true never "
                "steps them. Set one of them to false."
            )

    @property
    def planned_updates(self) -> int:
        """Number of updates in the whole run, including one at step `first_update`."""
        steps = self.total_timesteps - self.first_update
        return 1 + int(steps * self.updates_per_step) if steps >= 0 else 0

    @property
    def first_update(self) -> int:
        """Agent steps before the first update: 0 offline, because the replay already contains data."""
        return 0 if self.offline else self.learning_starts

    @property
    def updates_per_step(self) -> float:
        """Updates per agent step."""
        return self.train_ratio / (self.batch_size * self.sequence_length)


@dataclass(kw_only=True, slots=True)
class CollectConfig:
    """Settings of collectors: processes that only collect experience, for slow environments."""

    collectors: int = 0
    """Number of collector processes on a Ray cluster, each with an equal share of the environments. 0
    disables collectors."""

    address: str | None = None
    """Address of a cluster to join, or `auto` to find it. null starts a local cluster for this run."""

    steps: int = 16
    """Steps per environment after which a collector sends its records and receives new weights."""

    max_staleness: int = 64
    """Maximum number of updates between the weights that chose an action and the moment when its step is
    added to the replay. To stay within this limit, the learner waits for steps in flight."""

    def __post_init__(self) -> None:
        require_range("collect", self, "collectors", ge=0)
        require_range("collect", self, "steps", "max_staleness", ge=1)
        require_range("collect", self, "steps", le=10_000)


@dataclass(kw_only=True)
class DreamerTrainConfig(TrainConfig):
    """A run of `workflow=dreamer`."""

    trust: bool = False
    """Allow a copied or downloaded run to import the modules of its own classes (docs/components.md)."""

    training: DreamerTraining = field(default_factory=DreamerTraining)
    model: ModelConfig = field(default_factory=ModelConfig)
    world_model: WorldModelConfig = field(default_factory=WorldModelConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    collect: CollectConfig = field(default_factory=CollectConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.collect.collectors:
            self._check_collectors()
        elif self.collect.address:
            raise UserError(
                f"collect.address={self.collect.address} has no effect without collectors. "
                "Set collect.collectors, or omit it."
            )
        self._check_windows()
        self._check_updates()

    def _check_collectors(self) -> None:
        """Raise a `UserError` for collectors without environments or with unequal shares of them."""
        count, num_envs = self.collect.collectors, self.env.num_envs
        asked = f"collect.collectors={count}"
        require_package("ray", asked, ", or set collect.collectors=0")
        if self.env.suite is Suite.vector:
            raise UserError(f"{asked} cannot split the batch of env=vector. Omit it, or set env=gymnasium.")
        if self.training.offline:
            raise UserError(f"{asked} would never act with training.offline=true. Omit one of them.")
        if self.training.overlap:
            raise UserError(f"{asked} already act during updates. Omit training.overlap=true.")
        if num_envs % count:
            more = -(-num_envs // count) * count
            raise UserError(f"env.num_envs={num_envs} is not divisible by {asked}. Set env.num_envs={more}.")

    def _check_windows(self) -> None:
        """Raise a `UserError` for windows that can never fit into the replay."""
        capacity, num_envs = self.buffer.capacity, self.env.num_envs
        length, starts = self.training.sequence_length, self.training.learning_starts
        if (last := self.controller.imagine_last) > length:
            raise UserError(
                f"controller.imagine_last={last} exceeds the states in a window of training.sequence_length="
                f"{length}. Set controller.imagine_last={length} or less, or 0 for all."
            )
        window, share = length + 1, capacity // num_envs
        if window > share:
            raise UserError(
                f"training.sequence_length={length} needs windows of {count_text(window, 'record')}, "
                "but buffer.capacity="
                f"{capacity} leaves {share} for each of env.num_envs={num_envs}. Set buffer.capacity="
                f"{window * num_envs} or more, or training.sequence_length={max(1, share - 1)} or less."
            )
        if starts < window * num_envs and not self.training.offline:
            least = window * num_envs
            records, steps = count_text(window, "record"), count_text(least, "step")
            needed = f"one window of {records} in each of env.num_envs={num_envs} needs {steps}"
            repair = f"Set training.learning_starts={least} or more."
            raise UserError(f"training.learning_starts={starts} is too early: {needed}. {repair}")

    def _check_updates(self) -> None:
        """Raise a `UserError` for updates without a loss, or for more updates than the limit per step."""
        switched = (Objective.reconstruction, Objective.none)
        has_losses = any(self.world_model.losses.values()) or self.world_model.objective not in switched
        if self.training.warmup_steps and not has_losses:
            raise UserError(
                f"training.warmup_steps={self.training.warmup_steps} trains only the world model, but "
                "world_model.losses switches off all its losses. Set training.warmup_steps=0."
            )
        limit, num_envs = self.training.max_updates_per_step, self.env.num_envs
        updates = math.ceil(self.training.updates_per_step * num_envs)
        if updates > limit:
            raise UserError(
                f"training.train_ratio={self.training.train_ratio:g} needs {count_text(updates, 'update')} "
                f"per step of env.num_envs={num_envs}, above training.max_updates_per_step={limit}. "
                f"Set training.max_updates_per_step={updates} or lower the ratio."
            )
