"""Play and train a population in this process, all members in one stack."""

from collections.abc import Callable

from ....buffers import EpisodeReplayBuffer
from ....config.population import PopulationTrainConfig as TrainConfig
from ....workflows.population import ERLWorkflow, TrainPhase
from .ray_worker import Losses
from .rollouts import RolloutResult, Rollouts


class LocalEngine:
    """Plays all members at the same time and trains them together."""

    def __init__(self, config: TrainConfig) -> None:
        noise, count = config.td3.exploration_noise, config.population.size
        self._rollouts = Rollouts(config.env, config.population, noise, config.seed, 0, count)
        self.spec = self._rollouts.spec
        self.planned_bytes = self._rollouts.nbytes
        """Bytes held in this process between generations: the episodes of one."""

    def evaluate(
        self, workflow: ERLWorkflow, generation: int, should_stop: Callable[[], bool]
    ) -> RolloutResult | None:
        """Play every member's episodes; return None once `should_stop` is true.

        Raises:
            EnvironmentCrashed: If environments failed more than `env.max_restarts` times.
        """
        return self._rollouts.play(workflow.members, generation, should_stop)

    def learn(self, workflow: ERLWorkflow, replay: EpisodeReplayBuffer, phase: TrainPhase) -> Losses:
        """Let every member learn, in place; return the losses of each, by name, means over the phase."""
        losses = workflow.td3.learn(workflow.members, replay, phase)
        return {name: each.tolist() for name, each in losses.items()}

    def close(self) -> None:
        """Close the environments; may be called twice."""
        self._rollouts.close()
