"""The interface of a population's engine."""

from collections.abc import Callable
from typing import Protocol

from ....buffers import EpisodeReplayBuffer
from ....utils.timestep import EnvSpec
from ....workflows.population import ERLWorkflow, TrainPhase
from .rollouts import RolloutResult

Losses = dict[str, list[float]]
"""Losses of each member, by name; means over the training phase."""


class EngineFailed(RuntimeError):
    """The engine cannot continue; `resume=` continues from the newest checkpoint."""


class WorkersLost(EngineFailed):
    """Workers died more than `env.max_restarts` times."""


class ClusterLost(EngineFailed):
    """The cluster is gone: its head, or its node on this machine."""


class PopulationEngine(Protocol):
    """Plays and trains members, in this process or in others."""

    @property
    def spec(self) -> EnvSpec:
        """Shapes of observations and actions."""
        ...

    @property
    def planned_bytes(self) -> int:
        """Bytes held in this process between generations."""
        ...

    def evaluate(
        self, workflow: ERLWorkflow, generation: int, should_stop: Callable[[], bool]
    ) -> RolloutResult | None:
        """Play every member's episodes; return None once `should_stop` is true.

        Raises:
            EnvironmentCrashed: If environments failed more than `env.max_restarts` times.
            EngineFailed: If workers did, or their cluster is gone.
        """
        ...

    def learn(self, workflow: ERLWorkflow, replay: EpisodeReplayBuffer, phase: TrainPhase) -> Losses:
        """Let every member learn, in place.

        Raises:
            EngineFailed: As in `evaluate`.
        """
        ...

    def close(self) -> None:
        """Release environments, processes and clusters; may be called twice."""
        ...
