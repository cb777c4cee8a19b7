"""What the orchestrator of a population asks of an engine."""

from collections.abc import Callable
from typing import Protocol

from ....buffers import EpisodeReplayBuffer
from ....utils.timestep import EnvSpec
from ....workflows.population import ERLWorkflow, Lesson
from .rollouts import Played

Losses = dict[str, list[float]]
"""Of each member, by name; means over the lesson."""


class EngineFailed(RuntimeError):
    """The engine cannot go on: the newest checkpoint is where `resume=` goes on."""


class WorkersLost(EngineFailed):
    """Workers died more than `env.max_restarts` times."""


class ClusterLost(EngineFailed):
    """The cluster is gone: its head, or its node on this machine."""


class PopulationEngine(Protocol):
    """Plays members and lets them learn, somewhere."""

    @property
    def spec(self) -> EnvSpec:
        """What the environments observe and accept."""
        ...

    @property
    def planned_bytes(self) -> int:
        """What is held in this process between generations."""
        ...

    def evaluate(self, workflow: ERLWorkflow, generation: int, abandon: Callable[[], bool]) -> Played | None:
        """Play every member's episodes; None once `abandon` returns True.

        Raises:
            EnvironmentCrashed: If environments failed more than `env.max_restarts` times.
            EngineFailed: If workers did, or their cluster is gone.
        """
        ...

    def learn(self, workflow: ERLWorkflow, replay: EpisodeReplayBuffer, lesson: Lesson) -> Losses:
        """Let every member learn, in place.

        Raises:
            EngineFailed: As in `evaluate`.
        """
        ...

    def close(self) -> None:
        """Release environments, processes and clusters; may be called twice."""
        ...
