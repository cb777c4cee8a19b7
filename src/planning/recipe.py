"""The interface between planning and a kind of run."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ..buffers import ReplaySpec
from ..config.schema import TrainConfig
from ..envs import spec_of
from ..utils.ranks import Ranks
from ..utils.timestep import EnvSpec
from .resources import Row

GRADIENTS = "gradients"

Labels = dict[str, int]
"""Bytes by owner, in the order of display."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """Device memory in bytes of the networks and their updates."""

    num_parameters: int
    phases: dict[str, Labels]
    """Bytes by owner at the peak of each kind of update."""

    state: int
    """Bytes of state in a checkpoint: parameters, slow critic and optimizer state."""

    operators: int
    """Number of operators in the longest update's graph."""

    lasting: tuple[str, ...]
    """Labels of memory that persists for the whole run."""

    batch: str
    """Label of an update's replay batch."""

    on_host: tuple[str, ...] = ()
    """Labels of memory that is always on the host, regardless of the device."""

    @property
    def peak(self) -> Labels:
        """Bytes by owner at the highest of the peaks."""
        return max(self.phases.values(), key=lambda labels: sum(labels.values()))


@dataclass(frozen=True, slots=True)
class Written:
    """Data that a run writes to disk, except for its replay and networks."""

    records_per_save: int
    """Maximum number of records between two opportunities to save a checkpoint."""

    has_best: bool
    log_lines: int
    videos: int
    snapshots: int


class Recipe(Protocol):
    """The planning part of a run's interface. `orchestration.recipes` defines the full interface."""

    ranks: Ranks
    """The ranks of the run."""

    has_model_presets: bool
    """Whether the presets of `configs/model` apply."""

    def check(self, config: TrainConfig, env: EnvSpec) -> None:
        """Raise a `UserError` for settings or environments that this kind of run does not support."""
        ...

    def part(self, config: TrainConfig) -> TrainConfig:
        """Return this rank's share of the run as a standalone configuration."""
        ...

    def replay_spec(self, config: TrainConfig, env: EnvSpec) -> ReplaySpec:
        """Return the parameters that determine the replay's size."""
        ...

    def least_capacity(self, config: TrainConfig, env: EnvSpec) -> int:
        """Return the replay's minimum capacity in records."""
        ...

    def dry_run(self, config: TrainConfig, env: EnvSpec) -> DryRun:
        """Return the memory that the networks and their updates use, without allocating it."""
        ...

    def host_rows(self, config: TrainConfig, env: EnvSpec) -> list[Row]:
        """Return the rows for host memory that only this kind of run uses."""
        ...

    def num_environments(self, config: TrainConfig) -> int:
        """Return the number of concurrent environments."""
        ...

    def written(self, config: TrainConfig, env: EnvSpec) -> Written:
        """Return how much the whole run writes to disk."""
        ...

    def smaller(self, config: TrainConfig, over: set[str]) -> Iterator[Iterable[str]]:
        """Yield changes that reduce the usage of the resources `over`, per setting, smallest change first."""
        ...

    def model_name(self, config: TrainConfig) -> str:
        """Return the name of the model's size."""
        ...


def environment_spec(config: TrainConfig, recipe: Recipe) -> EnvSpec:
    """Return the spec of a run's environments. This briefly starts one of them in this process.

    Raises:
        UserError: If the environment does not exist, or this kind of run does not support it.
    """
    env = spec_of(config.env)
    recipe.check(config, env)
    return env
