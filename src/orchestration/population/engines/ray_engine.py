"""Play and train a population in the workers of a Ray cluster, a group of members in each."""

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ....buffers import EpisodeReplayBuffer
from ....config.population import RayConfig
from ....envs import EnvironmentCrashed
from ....utils.errors import UserError
from ....utils.timestep import EnvSpec
from ....workflows.population import ERLWorkflow, TrainPhase
from .base import Losses, WorkersLost
from .ray_cluster import Cluster
from .ray_transfer import TransferSize
from .ray_worker import Arrays, GroupWorker, WorkerSettings, as_tensors, own_copy, rows_to_send
from .rollouts import RolloutResult

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
Result = TypeVar("Result")


@dataclass(slots=True)
class _Group:
    """Consecutive members and their present worker."""

    index: int
    start: int
    stop: int
    worker: Any

    def __str__(self) -> str:
        last = self.stop - 1
        members = f"member {last}" if last == self.start else f"members {self.start} to {last}"
        return f"worker {self.index} of {members}"


class RayEngine:
    """Distributes the members to workers; replay and evolution stay in this process.

    Results equal those of `LocalEngine` on a CPU, bit for bit. In a generation actors are sent once, to play;
    then the rest of the members, to learn, and all of it comes back. Transitions are sent once, as one object
    that all workers of a node read in place. The object store is empty when the next generation begins.

    Args:
        config: Cluster and workers.
        settings: Settings of the workers.
        spec: Shapes of observations and actions.
        transfer: Bytes that a generation sends.

    Raises:
        UserError: If the cluster is not there or too small.
    """

    def __init__(
        self, config: RayConfig, settings: WorkerSettings, spec: EnvSpec, transfer: TransferSize
    ) -> None:
        self.spec, self._settings, self._transfer = spec, settings, transfer
        self._deaths = 0
        self._sent: tuple[int, list[Any]] | None = None
        self._cluster = Cluster(config, config.workers)
        self._ray = self._cluster.ray
        try:
            _require_workers(config, sum(self._cluster.cpus))
            transfer.require_room(self._cluster.object_store_bytes, config)
            self._remote = self._ray.remote(num_cpus=1, max_restarts=0)(GroupWorker)
            borders = [
                index * settings.population.size // config.workers for index in range(config.workers + 1)
            ]
            self._groups = [
                _Group(index, start, stop, self._worker(start, stop))
                for index, (start, stop) in enumerate(itertools.pairwise(borders))
            ]
        except BaseException:
            self.close()
            raise

    @property
    def planned_bytes(self) -> int:
        """Bytes of the episodes of one generation, each of the greatest length."""
        return self._transfer.episodes

    def evaluate(
        self, workflow: ERLWorkflow, generation: int, should_stop: Callable[[], bool]
    ) -> RolloutResult | None:
        """See `PopulationEngine.evaluate`."""
        self._cluster.require_alive()
        actors = self._put_actors(workflow, generation)

        def play(group: _Group) -> Any:
            return group.worker.play.remote(actors[group.index], generation)

        results = self._each(play, own_copy, should_stop)
        if results is None:
            return None
        return RolloutResult(
            [episode for part in results for episode in part.episodes],
            [fitness for part in results for fitness in part.fitness],
            [length for part in results for length in part.lengths],
        )

    def learn(self, workflow: ERLWorkflow, replay: EpisodeReplayBuffer, phase: TrainPhase) -> Losses:
        """See `PopulationEngine.learn`."""
        self._cluster.require_alive()
        members, put = workflow.members, self._ray.put
        actors = self._put_actors(workflow, phase.generation)
        rest = [put(rows_to_send(members, group.start, group.stop)[1]) for group in self._groups]
        table = put(replay.transition_table())

        def train(group: _Group) -> Any:
            return group.worker.learn.remote(actors[group.index], rest[group.index], table, phase)

        def copy(answer: tuple[Arrays, Losses]) -> tuple[dict[str, Any], Losses]:
            return as_tensors(answer[0]), answer[1]

        learned = self._each(train, copy, lambda: False)
        assert learned is not None
        self._sent = None
        losses: Losses = {}
        for group, (rows, of_group) in zip(self._groups, learned, strict=True):
            members.load_rows(group.start, rows)
            for name, values in of_group.items():
                losses.setdefault(name, []).extend(values)
        return losses

    def close(self) -> None:
        """Leave the cluster, and stop it if it was started here."""
        self._sent = None
        self._cluster.close()

    def _worker(self, start: int, stop: int) -> Any:
        return self._remote.remote(self._settings, start, stop - start)

    def _put_actors(self, workflow: ERLWorkflow, generation: int) -> list[Any]:
        """Return the actors of each group as references; they are sent once in a generation."""
        if self._sent is None or self._sent[0] != generation:
            self._sent = None  # frees the previous ones first
            rows = (rows_to_send(workflow.members, group.start, group.stop)[0] for group in self._groups)
            self._sent = (generation, [self._ray.put(actor) for actor in rows])
        return self._sent[1]

    def _each(
        self, begin: Callable[[_Group], Any], copy: Callable[[Any], Result], should_stop: Callable[[], bool]
    ) -> list[Result] | None:
        """Return the answers of all groups' workers, in order; None once `should_stop` is true.

        A worker that dies is replaced, and its work starts again. `copy` copies an answer out of the object
        store: Ray ends the process silently if it releases a view after its node has died.
        """
        answers: dict[int, Result] = {}
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
                    answers[group.index] = copy(self._ray.get(reference))
                except self._ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, EnvironmentCrashed):
                        raise error.cause from None  # without Ray's copy of the worker's stack
                    raise
                except self._ray.exceptions.RayError as error:
                    self._replace(group, error)
                    pending[begin(group)] = group
        return [answers[group.index] for group in self._groups]

    def _replace(self, group: _Group, error: Exception) -> None:
        """Replace a worker that died.

        Raises:
            WorkersLost: If that happened too often.
            ClusterLost: If more than the worker is gone.
        """
        self._cluster.require_alive()
        limit, reason = self._settings.env.max_restarts, str(error).strip().splitlines()[0]
        if self._deaths == limit:
            raise WorkersLost(
                f"Ray's {group} died: {reason} All {limit} restarts of env.max_restarts are used up."
            )
        self._deaths += 1
        _LOG.warning(
            "Ray's %s died: %s A new one does its work again, restart %s of env.max_restarts=%s.",
            group,
            reason,
            self._deaths,
            limit,
        )
        self._ray.kill(group.worker)  # it may be alive but unreachable
        group.worker = self._worker(group.start, group.stop)


def _require_workers(config: RayConfig, cpus: int) -> None:
    if cpus < config.workers:
        raise UserError(
            f"ray.workers={config.workers} need a CPU each, and the cluster of ray.address={config.address} "
            f"has {cpus}. Set ray.workers={max(1, cpus)}."
        )
