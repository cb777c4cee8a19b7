"""Run and train a population in Ray workers, each with a group of members."""

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from ....buffers import EpisodeReplayBuffer
from ....config.population import PopulationTrainConfig
from ....envs import EnvironmentCrashed, spec_of
from ....utils.errors import UserError
from ....workflows.population.erl import ERLWorkflow
from ....workflows.population.td3 import TrainPhase
from ...ray_cluster import Cluster, EngineFailed, WorkerDied
from ..dry_run import episode_bytes, require_room
from .rollouts import EngineSettings, GroupWorker, Losses, RolloutResult, rows_to_send

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.2


@dataclass(slots=True)
class _Group:
    """Consecutive members and their current worker."""

    index: int
    start: int
    stop: int
    worker: Any

    def __str__(self) -> str:
        last = self.stop - 1
        members = f"member {last}" if last == self.start else f"members {self.start} to {last}"
        return f"worker {self.index} of {members}"


class RayEngine:
    """Distributes the members among workers. Replay and evolution remain in this process.

    Results match those of `LocalEngine` on a CPU bit for bit. `transfer_bytes` computes how much data a
    generation sends. The object store is empty again when the next generation starts.

    Raises:
        UserError: If the cluster is missing or too small.
    """

    def __init__(self, config: PopulationTrainConfig, settings: EngineSettings) -> None:
        self.spec = spec_of(config.env)
        self.planned_bytes = episode_bytes(config, self.spec)
        self._settings, self._deaths = settings, 0
        # References to the actor networks of each group, sent once per generation.
        self._actors: list[Any] = []
        workers = config.ray.workers
        self._cluster = Cluster(config.ray.address, workers, config.ray.object_store_mib)
        self._ray = self._cluster.ray
        try:
            if (cpus := sum(self._cluster.cpus)) < workers:
                raise UserError(
                    f"ray.workers={workers} need {workers} CPUs, but the cluster at ray.address="
                    f"{config.ray.address} has {cpus}. Set ray.workers={max(1, cpus)}."
                )
            require_room(config, self.spec, self._cluster.object_store_bytes)
            self._remote = self._ray.remote(num_cpus=1, max_restarts=0)(GroupWorker)
            borders = [index * config.population.size // workers for index in range(workers + 1)]
            self._groups = [
                _Group(index, start, stop, self._worker(start, stop))
                for index, (start, stop) in enumerate(itertools.pairwise(borders))
            ]
        except BaseException:
            self.close()
            raise

    def evaluate(
        self, workflow: ERLWorkflow, generation: int, should_stop: Callable[[], bool]
    ) -> RolloutResult | None:
        """Run every member's episodes. Return `None` if `should_stop` returns True.

        Raises:
            EnvironmentCrashed: If environments failed more than `env.max_restarts` times.
            EngineFailed: If workers failed more often than that, or the cluster is lost.
        """
        self._cluster.require_alive()
        # This frees the previous actors first.
        self._actors = []
        rows = (rows_to_send(workflow.members, group.start, group.stop)[0] for group in self._groups)
        self._actors = [self._ray.put(actor) for actor in rows]

        def play(group: _Group) -> Any:
            return group.worker.play.remote(self._actors[group.index], generation)

        results: list[RolloutResult] | None = self._each(play, should_stop)
        if results is None:
            return None
        return RolloutResult(
            [episode for part in results for episode in part.episodes],
            [fitness for part in results for fitness in part.fitness],
            [length for part in results for length in part.lengths],
        )

    def learn(self, workflow: ERLWorkflow, replay: EpisodeReplayBuffer, phase: TrainPhase) -> Losses:
        """Train all members in place with the actors of `evaluate`. Raises the same errors as `evaluate`."""
        self._cluster.require_alive()
        members, put = workflow.members, self._ray.put
        rest = [put(rows_to_send(members, group.start, group.stop)[1]) for group in self._groups]
        table = put(replay.transition_table())

        def train(group: _Group) -> Any:
            return group.worker.learn.remote(self._actors[group.index], rest[group.index], table, phase)

        learned = self._each(train, lambda: False)
        assert learned is not None
        self._actors = []
        losses: Losses = {}
        for group, (rows, of_group) in zip(self._groups, learned, strict=True):
            members.load_rows(group.start, tree_map_only(np.ndarray, torch.from_numpy, rows))
            for name, values in of_group.items():
                losses.setdefault(name, []).extend(values)
        return losses

    def close(self) -> None:
        """Disconnect from the cluster, and stop it if it is local."""
        self._actors = []
        self._cluster.close()

    def _worker(self, start: int, stop: int) -> Any:
        return self._remote.remote(self._settings, start, stop - start)

    def _each(self, begin: Callable[[_Group], Any], should_stop: Callable[[], bool]) -> list[Any] | None:
        """Return the results of all groups in order, or `None` if `should_stop` returns True.

        A worker that dies is replaced, and its task is repeated.
        """
        answers: dict[int, Any] = {}
        pending = {begin(group): group for group in self._groups}
        while pending:
            done, _ = self._ray.wait(list(pending), timeout=_POLL_SECONDS)
            if should_stop():
                return None
            if not done:
                self._cluster.require_alive()
            for reference in done:
                group = pending.pop(reference)
                try:
                    answers[group.index] = self._cluster.get(reference, EnvironmentCrashed)
                except WorkerDied as death:
                    self._replace(group, death)
                    pending[begin(group)] = group
        return [answers[group.index] for group in self._groups]

    def _replace(self, group: _Group, death: WorkerDied) -> None:
        """Replace a dead worker.

        Raises:
            EngineFailed: If workers died too often.
            ClusterLost: If the cluster is lost.
        """
        self._cluster.require_alive()
        limit = self._settings.env.max_restarts
        if self._deaths == limit:
            raise EngineFailed(f"Ray's {group} died: {death} The limit env.max_restarts={limit} is reached.")
        self._deaths += 1
        restart = f"restart {self._deaths} of env.max_restarts={limit}"
        _LOG.warning("Ray's %s died: %s A new worker repeats its task (%s).", group, death, restart)
        # The worker may still be alive but unreachable.
        self._ray.kill(group.worker)
        group.worker = self._worker(group.start, group.stop)
