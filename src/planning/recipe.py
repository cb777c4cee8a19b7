"""What planning asks of a kind of run, and the answers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ..buffers import ReplaySpec
from ..config.schema import TrainConfig
from ..utils.ranks import Ranks
from ..utils.timestep import EnvSpec
from .resources import Row

GRADIENTS = "gradients"

Labels = dict[str, int]
"""Bytes by what they belong to, in the order in which a table shows them."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What the networks and their updates hold on the device, in bytes."""

    num_parameters: int
    phases: dict[str, Labels]
    """For each kind of update, what holds how much at the moment of its peak."""

    state: int
    """Parameters, slow critic and optimiser state: what a checkpoint holds."""

    operators: int
    """Operators of the longest update that are recorded in, or make up, its graph."""

    lasting: tuple[str, ...]
    """Labels of what lives as long as the run."""

    batch: str
    """Label of what replay gives for an update."""

    on_host: tuple[str, ...] = ()
    """Labels of what is in host memory wherever the networks are."""

    @property
    def peak(self) -> Labels:
        """What holds how much at the highest peak."""
        return max(self.phases.values(), key=lambda labels: sum(labels.values()))


@dataclass(frozen=True, slots=True)
class Written:
    """What a run writes to disk apart from its replay and its networks."""

    records_per_save: int
    """Most records between two moments at which a checkpoint may be written."""

    has_best: bool
    log_lines: int
    videos: int
    snapshots: int


class Recipe(Protocol):
    """A kind of run, as far as planning needs it; `orchestration.recipes` has the whole."""

    ranks: Ranks
    """The processes that share the run."""

    has_model_presets: bool
    """Whether a preset of `configs/model` chooses its size."""

    def check(self, config: TrainConfig, env: EnvSpec) -> None:
        """Raise a `UserError` for what this kind of run cannot do with its environments."""
        ...

    def part(self, config: TrainConfig) -> TrainConfig:
        """Return what of a run is this process's, as a run of its own: all of it, if there is no other."""
        ...

    def replay_spec(self, config: TrainConfig, env: EnvSpec) -> ReplaySpec:
        """Return everything that the size of the replay depends on."""
        ...

    def least_capacity(self, config: TrainConfig, env: EnvSpec) -> int:
        """Return the smallest replay, in records."""
        ...

    def dry_run(self, config: TrainConfig, env: EnvSpec) -> DryRun:
        """Return what the networks and their updates hold; allocates nothing."""
        ...

    def host_rows(self, config: TrainConfig, env: EnvSpec) -> list[Row]:
        """Return what else this kind of run holds in host memory."""
        ...

    def num_environments(self, config: TrainConfig) -> int:
        """Return how many environments run at once."""
        ...

    def written(self, config: TrainConfig, env: EnvSpec) -> Written:
        """Return what is written to disk until the end."""
        ...

    def smaller(self, config: TrainConfig, over: set[str]) -> Iterator[Iterable[str]]:
        """Yield kinds of change that take less of the resources `over`; in each the smallest comes first."""
        ...

    def model_name(self, config: TrainConfig) -> str:
        """Return the name of the model's size."""
        ...
