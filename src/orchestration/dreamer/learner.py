"""Dreamer's training loop with collectors in other processes."""

import sys
from concurrent.futures import Future
from functools import partial

from ...utils.side_thread import at_once
from ...utils.timestep import TimeStep
from ..orchestrator import OpenedRun
from ..world_model_orchestrator import WorldModelOrchestrator
from .collectors import Collectors


class LearnerOrchestrator(WorldModelOrchestrator):
    """A run with `Collectors` as its environments. A loop step adds records from any number of environments.

    The update debt follows received steps and is never dropped. Updates that would make in-flight rollouts
    too stale wait until those rollouts arrive.
    """

    def __init__(self, opened: OpenedRun) -> None:
        super().__init__(opened)
        self.collectors: Collectors = opened.parts.environment
        self.update_ratio.max_owed = sys.maxsize

    def _collect(self, time_step: TimeStep) -> Future[TimeStep]:
        """Store the received step and run the updates that are due. Return the next (possibly empty) step."""
        if len(time_step.reward):
            self._remember(time_step, self.collectors.played, self.collectors.envs)
            self.collectors.added(self.updates)
        # Train first, so that new rollouts use the newest weights.
        self._learn()
        with self.watch("collect"):
            is_behind = self.update_ratio.backlog > 0 and self.parts.replay.can_sample
            return at_once(partial(self.collectors.next, self.updates, is_behind, self._is_over))

    def _is_over(self) -> bool:
        return self.signals.stop or self.step >= self.config.training.total_timesteps

    def _updates_due(self) -> int:
        """Return how many due updates keep all rollouts fresh enough. At the end, return all of them."""
        is_last = self.step >= self.config.training.total_timesteps
        return self.update_ratio(self.step, sys.maxsize if is_last else self.collectors.room(self.updates))

    def tags(self) -> dict[str, float]:
        """See `WorldModelOrchestrator.tags`."""
        return super().tags() | self.collectors.tags()
