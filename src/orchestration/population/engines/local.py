"""Play and train a population in this process, all members in one stack."""

from collections.abc import Callable

from ....buffers import EpisodeReplayBuffer
from ....envs import EnvConfig
from ....utils.timestep import EnvSpec
from ....workflows.population import ERLWorkflow, PopulationConfig, TrainPhase
from .base import Losses
from .rollouts import RolloutResult, Rollouts


class LocalEngine:
    """Plays all members at the same time and trains them together.

    Args:
        env: Settings of the environment.
        population: Members and their episodes.
        exploration_noise: Standard deviation of the noise of exploring episodes.
        seed: Run seed.
    """

    def __init__(
        self, env: EnvConfig, population: PopulationConfig, exploration_noise: float, seed: int
    ) -> None:
        self._rollouts = Rollouts(env, population, exploration_noise, seed, 0, population.size)
        self.spec: EnvSpec = self._rollouts.spec

    @property
    def planned_bytes(self) -> int:
        """Bytes of the episodes of one generation."""
        return self._rollouts.nbytes

    def evaluate(
        self, workflow: ERLWorkflow, generation: int, should_stop: Callable[[], bool]
    ) -> RolloutResult | None:
        """See `PopulationEngine.evaluate`."""
        return self._rollouts.play(workflow.members, generation, should_stop)

    def learn(self, workflow: ERLWorkflow, replay: EpisodeReplayBuffer, phase: TrainPhase) -> Losses:
        """See `PopulationEngine.learn`."""
        losses = workflow.td3.learn(workflow.members, replay, phase)
        return {name: each.tolist() for name, each in losses.items()}

    def close(self) -> None:
        """Close the environments."""
        self._rollouts.close()
