"""Interface between planning and a kind of run."""

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
"""Bytes by owner, in display order."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """Device memory of the networks and their updates, in bytes."""

    num_parameters: int
    phases: dict[str, Labels]
    """Bytes by owner at the peak of each kind of update."""

    state: int
    """Bytes of the state in a checkpoint: parameters, slow critic and optimizer state."""

    operators: int
    """Number of operators in the graph of the longest update."""

    lasting: tuple[str, ...]
    """Labels of memory that persists for the whole run."""

    batch: str
    """Label of the replay batch of an update."""

    on_host: tuple[str, ...] = ()
    """Labels of memory that is always on the host, whatever the device."""

    @property
    def peak(self) -> Labels:
        """Bytes by owner at the highest peak."""
        return max(self.phases.values(), key=lambda labels: sum(labels.values()))


@dataclass(frozen=True, slots=True)
class Written:
    """Disk writes of a run, except for its replay and networks."""

    records_per_save: int
    """Maximum records between two opportunities to save a checkpoint."""

    has_best: bool
    log_lines: int
    videos: int
    snapshots: int


class Recipe(Protocol):
    """The planning interface of a kind of run. `orchestration.recipes` defines the full interface."""

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
        """Return the parameters that determine the size of the replay."""
        ...

    def least_capacity(self, config: TrainConfig, env: EnvSpec) -> int:
        """Return the minimum capacity of the replay, in records."""
        ...

    def dry_run(self, config: TrainConfig, env: EnvSpec) -> DryRun:
        """Return the memory of the networks and their updates without allocating it."""
        ...

    def host_rows(self, config: TrainConfig, env: EnvSpec) -> list[Row]:
        """Return additional host memory of this kind of run."""
        ...

    def num_environments(self, config: TrainConfig) -> int:
        """Return the number of concurrent environments."""
        ...

    def written(self, config: TrainConfig, env: EnvSpec) -> Written:
        """Return the disk writes of the whole run."""
        ...

    def smaller(self, config: TrainConfig, over: set[str]) -> Iterator[Iterable[str]]:
        """Yield changes that reduce the usage of the resources `over`, per setting, smallest change first."""
        ...

    def model_name(self, config: TrainConfig) -> str:
        """Return the name of the model's size."""
        ...


def environment_spec(config: TrainConfig, recipe: Recipe) -> EnvSpec:
    """Return the spec of a run's environments, starting one of them briefly in this process.

    Raises:
        UserError: If the environment does not exist, or this kind of run does not support it.
    """
    env = spec_of(config.env)
    recipe.check(config, env)
    return env
