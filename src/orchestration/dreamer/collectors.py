"""Ray actors that collect experience with the learner's weights and send it back."""

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
from ...config.dreamer import DreamerTrainConfig
from ...config.schema import LEAST_OBJECT_STORE_MIB
from ...envs import EnvConfig, EnvironmentCrashed, make_environment
from ...utils.errors import UserError
from ...utils.seeding import named_seed
from ...utils.timestep import EnvSpec, TimeStep
from ...workflows import PolicyOutput
from ...workflows.world_models import DreamerWorkflow
from ..ray_cluster import Cluster, EngineFailed, WorkerDied, check_reachable, require_token
from .dry_run import dry_run, replay_spec, workflow_config

Row = tuple[TimeStep, NDArray[np.float32] | Tensor, NDArray[np.float32], NDArray[np.uint8]]
"""A record from each environment of a collector, with the action, deter and stoch of `PolicyOutput`."""

AHEAD = 2
"""Rollouts in flight per collector: one is collected while the previous one is trained on."""

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.2


def acting_tensors(workflow: DreamerWorkflow) -> list[Tensor]:
    """Return the tensors that acting uses, in a fixed order and without copying."""
    modules = (workflow.world_model.encoder, workflow.world_model.rssm, workflow.controller.actor)
    return [tensor for module in modules for tensor in module.state_dict().values()]


def parcel_bytes(config: DreamerTrainConfig, env: EnvSpec) -> int:
    """Return the size of a rollout in bytes."""
    record = sum(each.nbytes for each in record_fields(replay_spec(config, env)).values())
    # Latents are sent before the replay converts them to its own format.
    latents = 4 * config.model.deter + config.model.stoch
    return config.collect.steps * env.num_envs // config.collect.collectors * (record + latents)


def object_store_mib(config: DreamerTrainConfig, env: EnvSpec) -> int:
    """Return the shared memory in MiB for all rollouts in flight, each with its own weights."""
    weights = 4 * dry_run(config, env).num_parameters
    count = AHEAD * config.collect.collectors + 1
    return max(LEAST_OBJECT_STORE_MIB, math.ceil(1.1 * count * (weights + parcel_bytes(config, env)) / 2**20))


class Collector:
    """Acts in one share of a run's environments, in a separate process.

    `env` configures the share, and `first` is the index of its first environment. `start` counts the
    collectors that the run has already started, so that each one plays new episodes.
    """

    def __init__(self, config: DreamerTrainConfig, env: EnvConfig, first: int, start: int) -> None:
        self._config, self._env, self._first = config, env, first
        self._seed = named_seed(config.seed, "collector", start)

    def begin(self) -> None:
        """Start the environments and create the networks. Ray would hide errors raised in `__init__`."""
        torch.set_num_threads(1)
        self._environment = make_environment(self._env, self._seed, first=self._first)
        spec, networks = self._environment.spec, workflow_config(self._config)
        self._workflow = DreamerWorkflow(spec, networks, torch.device("cpu"), seed=self._seed)
        # Collectors never train.
        self._workflow.optimizers.clear()
        self._step = self._environment.reset()

    def play(self, weights: list[NDArray[Any]]) -> list[Row]:
        """Take `collect.steps` steps in each environment with `weights`, the values of `acting_tensors`."""
        for tensor, numbers in zip(acting_tensors(self._workflow), weights, strict=True):
            tensor.copy_(torch.tensor(numbers))
        return [self._act() for _ in range(self._config.collect.steps)]

    def _act(self) -> Row:
        chosen, seen = self._workflow.collect_step(self._step), self._step
        self._step = self._environment.step(chosen.action)
        return seen, chosen.action, chosen.latent.deter.numpy(), chosen.latent.stoch.numpy()


@dataclass(slots=True, eq=False)
class _Part:
    """An equal share of the environments, and its current collector."""

    envs: NDArray[np.int64]
    actor: Any = None
    ordered: deque[tuple[Any, float]] = field(default_factory=deque)
    """Rollouts in flight, oldest first, each with the update count of its weights."""

    deaths: int = 0
    """Number of collectors that have died in a row."""

    @property
    def oldest(self) -> float:
        """The smallest update count among the weights in flight, or inf if there are no rollouts."""
        return self.ordered[0][1] if self.ordered else math.inf

    def __str__(self) -> str:
        first, last = self.envs[0], self.envs[-1]
        return f"collector of environment{f' {last}' if first == last else f's {first} to {last}'}"


class Collectors:
    """A replacement for `VectorEnvironment` that runs its environments in other processes.

    Records are yielded in arrival order, but each environment's records stay contiguous and in order. If a
    collector dies, its rollouts in flight are lost, and a new collector starts new episodes. The replay marks
    the unfinished episodes as truncated.

    Raises:
        UserError: If the cluster is missing, too small, or open to everyone.
    """

    def __init__(self, config: DreamerTrainConfig, spec: EnvSpec, workflow: DreamerWorkflow) -> None:
        count = config.collect.collectors
        size = spec.num_envs // count
        self.spec, self.planned_bytes = replace(spec, renders=False), parcel_bytes(config, spec)
        self._config, self._env = config, replace(config.env, num_envs=size)
        self._tensors, self._weights, self._published = acting_tensors(workflow), None, -1
        self._parts = [_Part(np.arange(first, first + size)) for first in range(0, spec.num_envs, size)]
        # The remaining rows of the current rollout, and the update count of its weights (inf without a
        # rollout).
        self._rows: deque[Row] = deque()
        self._version = math.inf
        self._starts, self._lags = 0, Counter[int]()
        store = object_store_mib(config, spec)
        if config.collect.address is not None:
            # If the cluster does not answer, `Cluster` raises an error.
            with suppress(OSError):
                check_reachable(config.collect.address)
                require_token("collect.address", config.collect.address)
        self._cluster = Cluster(config.collect.address, count, store, "collect.address")
        self._ray = self._cluster.ray
        if (cpus := sum(self._cluster.cpus)) < count:
            self.close()
            raise UserError(
                f"collect.collectors={count} need {count} CPUs, but the cluster at collect.address="
                f"{config.collect.address} has {cpus}. Add another machine with reverie-collect."
            )
        self._remote = self._ray.remote(num_cpus=1, max_restarts=0)(Collector)

    def reset(self) -> TimeStep:
        """Start a collector for each share. Return an empty step, because no record has arrived yet."""
        for part in self._parts:
            self._begin(part)
        return self._empty_step()

    def restore(self, state: dict[str, Any]) -> tuple[TimeStep, list[str]]:
        """Reset with new episodes. Return the empty step and an empty list of warnings."""
        self._starts = state["starts"]
        return self.reset(), []

    def state_dict(self) -> dict[str, int]:
        """Return the number of collectors started so far. Their episodes cannot be restored."""
        return {"starts": self._starts}

    def render(self) -> None:
        """Return `None`, because collectors do not render."""

    def next(self, updates: int, is_behind: bool, should_stop: Callable[[], bool]) -> TimeStep:
        """Wait for the next record and return it. `envs` lists its environments, `played` its actions.

        `updates` is the number of updates so far. While the learner `is_behind`, updates wait for records
        that are already in flight, so no new rollouts are requested. The step is empty if `should_stop`
        returns True or no rollout is in flight.

        Raises:
            EngineFailed: If more than `env.max_restarts` collectors die in a row, or the cluster is lost.
            EnvironmentCrashed: If a collector's environments fail more often than that.
            UserError: If a collector cannot create its environments.
        """
        while not self._rows:
            if not is_behind:
                self._order(updates)
            latest = updates - self._config.collect.max_staleness if is_behind else math.inf
            heads = {
                part.ordered[0][0]: part for part in self._parts if part.ordered and part.oldest <= latest
            }
            # The collector being waited for has died and been replaced.
            if not heads:
                return self._empty_step()
            done, _ = self._ray.wait(list(heads), timeout=_POLL_SECONDS)
            # This check comes first, because Ctrl-C on a terminal also reaches the collectors.
            if should_stop():
                return self._empty_step()
            for reference in done:
                self._receive(heads[reference], reference)
            if not done:
                self._cluster.require_alive()
        step, action, deter, stoch = self._rows.popleft()
        latent = StoredLatent(torch.from_numpy(deter), torch.from_numpy(stoch))
        self.played = PolicyOutput(action, latent)
        return step

    def added(self, updates: int) -> None:
        """Record that the replay received the last step returned by `next` after this many updates."""
        self._lags[updates - int(self._version)] += len(self.envs)
        if not self._rows:
            self._version = math.inf

    def room(self, updates: int) -> int:
        """Return how many more updates keep all steps in flight within `collect.max_staleness`."""
        oldest = min(self._version, *(part.oldest for part in self._parts))
        room = oldest + self._config.collect.max_staleness - updates
        return sys.maxsize if room == math.inf else max(0, int(room))

    def tags(self) -> dict[str, float]:
        """Return the staleness of the steps added since the last call, in updates."""
        lags, self._lags = self._lags, Counter()
        tags = {"collect/collectors_begun": float(self._starts)}
        if lags:
            tags["collect/staleness_updates_max"] = float(max(lags))
            tags["collect/staleness_updates_mean"] = sum(lags.elements()) / lags.total()
        return tags

    def close(self) -> None:
        """Disconnect from the cluster, and stop it if it is local."""
        self._weights = None
        for part in self._parts:
            part.actor, part.ordered = None, deque()
        self._cluster.close()

    def _empty_step(self) -> TimeStep:
        return TimeStep.empty(replace(self.spec, num_envs=0))

    def _begin(self, part: _Part) -> None:
        part.actor = self._remote.remote(self._config, self._env, int(part.envs[0]), self._starts)
        part.ordered = deque([(part.actor.begin.remote(), math.inf)])
        self._starts += 1

    def _order(self, updates: int) -> None:
        """Request rollouts with the current weights, so that each running collector has `AHEAD` in flight."""
        for part in self._parts:
            has_begun = not part.ordered or part.oldest < math.inf
            while has_begun and len(part.ordered) < AHEAD:
                if self._published != updates:
                    self._weights = self._ray.put([tensor.cpu().numpy() for tensor in self._tensors])
                    self._published = updates
                part.ordered.append((part.actor.play.remote(self._weights), updates))

    def _receive(self, part: _Part, reference: Any) -> None:
        """Receive the oldest rollout of a collector, or replace the collector if it died."""
        try:
            rows: list[Row] | None = self._cluster.get(reference, EnvironmentCrashed, UserError)
        except WorkerDied as death:
            return self._replace(part, death)
        _, version = part.ordered.popleft()
        # The result of `begin` has no rows.
        if rows is not None:
            self._rows, self._version, self.envs, part.deaths = deque(rows), version, part.envs, 0
        # Moving the share to the end gives every share its turn.
        self._parts.remove(part)
        self._parts.append(part)

    def _replace(self, part: _Part, death: WorkerDied) -> None:
        """Replace a dead collector. Raises the same errors as `next`."""
        self._cluster.require_alive()
        limit = self._config.env.max_restarts
        if part.deaths == limit:
            raise EngineFailed(
                f"the {part} died: {death} The limit is env.max_restarts={limit} consecutive restarts."
            )
        part.deaths += 1
        _LOG.warning("the %s died: %s Restarted with new episodes.", part, death)
        # The collector may still be alive but unreachable.
        self._ray.kill(part.actor)
        self._begin(part)
