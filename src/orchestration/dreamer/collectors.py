"""Processes of a Ray cluster that only act: with the weights of the learner, which gets what they did."""

import logging
import math
import sys
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...buffers import StoredLatent, record_fields
from ...config.cluster import LEAST_OBJECT_STORE_MIB
from ...config.dreamer import DreamerTrainConfig
from ...envs import EnvConfig, EnvironmentCrashed, make_environment
from ...utils.errors import UserError
from ...utils.seeding import named_seed
from ...utils.timestep import EnvSpec, TimeStep
from ...workflows import PolicyOutput
from ...workflows.world_models import DreamerWorkflow
from ..ray_cluster import Cluster, EngineFailed, WorkerDied, check_reachable, require_token
from .dry_run import dry_run, replay_spec, workflow_config

Row = tuple[TimeStep, NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8]]
"""A record of each of a collector's environments; action, deter and stoch as in `PolicyOutput`."""

AHEAD = 2
"""Parcels on order from each collector: one is played while the learner learns from the one before."""

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.2


def acting_tensors(workflow: DreamerWorkflow) -> list[Tensor]:
    """Return what acting reads, live, in one order."""
    modules = (workflow.world_model.encoder, workflow.world_model.rssm, workflow.controller.actor)
    return [tensor for module in modules for tensor in module.state_dict().values()]


def parcel_bytes(config: DreamerTrainConfig, env: EnvSpec) -> int:
    """Return the bytes of what a collector sends at once."""
    record = sum(each.nbytes for each in record_fields(replay_spec(config, env)).values())
    latents = 4 * config.model.deter + config.model.stoch  # as they are before the replay has made them small
    return config.collect.steps * env.num_envs // config.collect.collectors * (record + latents)


def object_store_mib(config: DreamerTrainConfig, env: EnvSpec) -> int:
    """Return the shared memory that holds all parcels on order, each with weights of its own."""
    weights = 4 * dry_run(config, env).num_parameters
    held = AHEAD * config.collect.collectors + 1
    return max(LEAST_OBJECT_STORE_MIB, math.ceil(1.1 * held * (weights + parcel_bytes(config, env)) / 2**20))


class Collector:
    """Plays a part of a run's environments, `env`, from number `first` on, in a process of its own.

    `start` counts the collectors that the run has begun: each plays other episodes than all before it.
    """

    def __init__(self, config: DreamerTrainConfig, env: EnvConfig, first: int, start: int) -> None:
        self._config, self._env, self._first = config, env, first
        self._seed = named_seed(config.seed, "collector", start)

    def begin(self) -> None:
        """Start environments and make networks: not in `__init__`, whose errors Ray hides in its own."""
        torch.set_num_threads(1)
        self._environment = make_environment(self._env, self._seed, first=self._first)
        spec, networks = self._environment.spec, workflow_config(self._config)
        self._workflow = DreamerWorkflow(spec, networks, torch.device("cpu"), seed=self._seed)
        self._workflow.optimizers.clear()  # it never learns
        self._step = self._environment.reset()

    def play(self, weights: list[NDArray[Any]]) -> list[Row]:
        """Take `collect.steps` steps in each environment with the numbers of `acting_tensors`."""
        for tensor, numbers in zip(acting_tensors(self._workflow), weights, strict=True):
            tensor.copy_(torch.tensor(numbers))
        return [self._act() for _ in range(self._config.collect.steps)]

    def _act(self) -> Row:
        chosen, seen = self._workflow.collect_step(self._step), self._step
        self._step = self._environment.step(chosen.action)
        return seen, chosen.action, chosen.latent.deter.numpy(), chosen.latent.stoch.numpy()


@dataclass(slots=True, eq=False)
class _Part:
    """An equal part of the environments, and the collector that plays it now."""

    envs: NDArray[np.int64]
    actor: Any = None
    ordered: deque[tuple[Any, float]] = field(default_factory=deque)
    """Parcels that it was asked for, the oldest first, and the updates that their weights have had."""

    deaths: int = 0
    """Collectors that died in a row."""

    @property
    def oldest(self) -> float:
        """The least updates that weights of what is on order have had; inf if none counts."""
        return self.ordered[0][1] if self.ordered else math.inf

    def __str__(self) -> str:
        first, last = self.envs[0], self.envs[-1]
        return f"collector of environment{f' {last}' if first == last else f's {first} to {last}'}"


class Collectors:
    """The environments of a run, played by other processes, in place of a `VectorEnvironment`.

    Records come in the order in which they arrive; those of one environment as they were made, without a gap.
    After a collector has died another one begins new episodes in its environments: what was on its way is
    lost, and the replay ends the episodes that were open as truncated.

    Raises:
        UserError: If the cluster is not there, too small, or open to everyone.
    """

    def __init__(self, config: DreamerTrainConfig, spec: EnvSpec, workflow: DreamerWorkflow) -> None:
        count = config.collect.collectors
        size = spec.num_envs // count
        self.spec, self.planned_bytes = replace(spec, renders=False), parcel_bytes(config, spec)
        self._config, self._env = config, replace(config.env, num_envs=size)
        self._tensors, self._weights, self._published = acting_tensors(workflow), None, -1
        self._parts = [_Part(np.arange(first, first + size)) for first in range(0, spec.num_envs, size)]
        self._rows: deque[Row] = deque()  # of the parcel at hand
        self._at_hand = math.inf  # the updates that its weights have had; inf without one
        self._starts, self._lags = 0, Counter[int]()
        store = object_store_mib(config, spec)
        if config.collect.address is not None:
            with suppress(OSError):  # Nothing answers: `Cluster` raises.
                check_reachable(config.collect.address)
                require_token("collect.address", config.collect.address)
        self._cluster = Cluster(config.collect.address, count, store, "collect.address")
        self._ray = self._cluster.ray
        if (cpus := sum(self._cluster.cpus)) < count:
            self.close()
            raise UserError(
                f"collect.collectors={count} need a CPU each, and the cluster of collect.address="
                f"{config.collect.address} has {cpus}. Let another machine join it by reverie-collect."
            )
        self._remote = self._ray.remote(num_cpus=1, max_restarts=0)(Collector)

    def reset(self) -> TimeStep:
        """Begin a collector for each part; return a step of no environment, for none has arrived."""
        for part in self._parts:
            self._begin(part)
        return self._nothing()

    def restore(self, state: dict[str, Any]) -> tuple[TimeStep, list[str]]:
        """Do as `reset`, with episodes that the run has not begun before, and no warnings."""
        self._starts = state["starts"]
        return self.reset(), []

    def state_dict(self) -> dict[str, int]:
        """Return how many collectors the run has begun; their episodes cannot be brought back."""
        return {"starts": self._starts}

    def render(self) -> None:
        """Return no picture."""

    def next(self, updates: int, is_behind: bool, should_stop: Callable[[], bool]) -> TimeStep:
        """Return the next record of some environments, `envs`; `played` is what was done there. It may wait.

        `updates` are made so far. While it `is_behind`, updates wait for old records, so nothing is ordered.
        The step is of no environment once `should_stop` is true, or if there is nothing to wait for.

        Raises:
            EngineFailed: If collectors die more than `env.max_restarts` times in a row, or the cluster does.
            EnvironmentCrashed: If environments fail more often than that in one of them.
            UserError: If an environment cannot be made there.
        """
        while not self._rows:
            if not is_behind:
                self._order(updates)
            latest = updates - self._config.collect.max_staleness if is_behind else math.inf
            heads = {
                part.ordered[0][0]: part for part in self._parts if part.ordered and part.oldest <= latest
            }
            if not heads:  # the one to wait for has died, and another one has begun
                return self._nothing()
            done, _ = self._ray.wait(list(heads), timeout=_POLL_SECONDS)
            if should_stop():  # first of all: Ctrl-C on a terminal is for collectors too
                return self._nothing()
            for reference in done:
                self._receive(heads[reference], reference)
            if not done:
                self._cluster.require_alive()
        step, action, deter, stoch = self._rows.popleft()
        latent = StoredLatent(torch.from_numpy(deter), torch.from_numpy(stoch))
        self.played = PolicyOutput(action, latent)
        return step

    def added(self, updates: int) -> None:
        """Note that the step that `next` has returned is in the replay, after so many updates."""
        self._lags[updates - int(self._at_hand)] += len(self.envs)
        if not self._rows:
            self._at_hand = math.inf

    def room(self, updates: int) -> int:
        """Return how many more updates keep all that is on its way within `collect.max_staleness`."""
        oldest = min(self._at_hand, *(part.oldest for part in self._parts))
        room = oldest + self._config.collect.max_staleness - updates
        return sys.maxsize if room == math.inf else max(0, int(room))

    def tags(self) -> dict[str, float]:
        """Return by how many updates the weights of what was added lagged, since the last call."""
        lags, self._lags = self._lags, Counter()
        tags = {"collect/collectors_begun": float(self._starts)}
        if lags:
            tags["collect/staleness_updates_max"] = float(max(lags))
            tags["collect/staleness_updates_mean"] = sum(lags.elements()) / lags.total()
        return tags

    def close(self) -> None:
        """Leave the cluster, and stop it if it was started here."""
        self._weights = None
        for part in self._parts:
            part.actor, part.ordered = None, deque()
        self._cluster.close()

    def _nothing(self) -> TimeStep:
        return TimeStep.empty(replace(self.spec, num_envs=0))

    def _begin(self, part: _Part) -> None:
        part.actor = self._remote.remote(self._config, self._env, int(part.envs[0]), self._starts)
        part.ordered = deque([(part.actor.begin.remote(), math.inf)])
        self._starts += 1

    def _order(self, updates: int) -> None:
        """Let each collector that has begun have its parcels on order, with the present weights."""
        for part in self._parts:
            has_begun = not part.ordered or part.oldest < math.inf
            while has_begun and len(part.ordered) < AHEAD:
                if self._published != updates:
                    self._weights = self._ray.put([tensor.cpu().numpy() for tensor in self._tensors])
                    self._published = updates
                part.ordered.append((part.actor.play.remote(self._weights), updates))

    def _receive(self, part: _Part, reference: Any) -> None:
        """Take what a collector was asked for first; replace one that died."""
        try:
            rows: list[Row] | None = self._cluster.get(reference, EnvironmentCrashed, UserError)
        except WorkerDied as death:
            return self._replace(part, death)
        _, version = part.ordered.popleft()
        if rows is not None:  # else it has begun
            self._rows, self._at_hand, self.envs, part.deaths = deque(rows), version, part.envs, 0
        self._parts.remove(part)
        self._parts.append(part)  # so that all have their turn

    def _replace(self, part: _Part, death: WorkerDied) -> None:
        """Replace a collector that died; raises as `next`."""
        self._cluster.require_alive()
        limit = self._config.env.max_restarts
        if part.deaths == limit:
            raise EngineFailed(
                f"the {part} died: {death} That is more than env.max_restarts={limit} in a row."
            )
        part.deaths += 1
        _LOG.warning("the %s died: %s A new one begins new episodes there.", part, death)
        self._ray.kill(part.actor)  # it may be alive but unreachable
        self._begin(part)
