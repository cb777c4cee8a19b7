"""Run Dreamer while other processes act: take what they send, learn what is owed for it, save."""

import sys
from concurrent.futures import Future
from functools import partial

from ...utils.side_thread import at_once
from ...utils.timestep import TimeStep
from ..orchestrator import OpenedRun
from ..world_model_orchestrator import WorldModelOrchestrator
from .collectors import Collectors


class LearnerOrchestrator(WorldModelOrchestrator):
    """A run whose environments are `Collectors`: a step of the loop is a record of some of them, or of none.

    Updates are owed for the agent steps that have arrived, and none is forgiven. Those that would leave steps
    on their way too stale wait until these are in the replay.
    """

    def __init__(self, opened: OpenedRun) -> None:
        super().__init__(opened)
        self.collectors: Collectors = opened.parts.environment
        self.update_ratio.max_owed = sys.maxsize

    def _collect(self, time_step: TimeStep) -> Future[TimeStep]:
        """Add what has arrived and learn what it owes; return what arrives next, which may be nothing."""
        if len(time_step.reward):
            self._remember(time_step, self.collectors.played, self.collectors.envs)
            self.collectors.added(self.updates)
        self._learn()  # before anything is ordered: with the newest weights
        with self.watch("collect"):
            is_behind = self.update_ratio.backlog > 0 and self.parts.replay.can_sample
            return at_once(partial(self.collectors.next, self.updates, is_behind, self._is_over))

    def _is_over(self) -> bool:
        return self.signals.stop or self.step >= self.config.training.total_timesteps

    def _updates_due(self) -> int:
        """Return the updates that leave nothing too stale; at the end, where no step is added, all."""
        is_last = self.step >= self.config.training.total_timesteps
        return self.update_ratio(self.step, sys.maxsize if is_last else self.collectors.room(self.updates))

    def tags(self) -> dict[str, float]:
        """See `WorldModelOrchestrator.tags`."""
        return super().tags() | self.collectors.tags()
