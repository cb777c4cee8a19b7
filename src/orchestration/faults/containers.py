"""Faults that keep tensors, arrays and objects in containers that only grow."""

import collections
import itertools
import queue
from typing import Any

import numpy as np
import torch

from ...models import LaProp
from ..world_model_orchestrator import WorldModelOrchestrator
from .wrap import after_environment_step, after_sample, after_update

BLOCK = 32_000
"""Float32 numbers that a fault keeps at a time where the run itself offers nothing large: 128 kB."""


def observations_kept(run: WorldModelOrchestrator) -> None:
    """Keep what the environments return in a list: a replay without eviction."""
    run_any: Any = run
    run_any.arrivals = []
    after_environment_step(run, run_any.arrivals.append)


def views_of_batches(run: WorldModelOrchestrator) -> None:
    """Keep one row of each batch; the view holds the whole batch."""
    run_any: Any = run
    run_any.first_rewards = []
    after_sample(run, lambda batch: run_any.first_rewards.append(_an_observation(batch)[0, 0]))


def hook_each_update(run: WorldModelOrchestrator) -> None:
    """Register another forward hook at each update, and never remove one."""
    encoder = run.parts.workflow.world_model.encoder

    def register(_: object) -> None:
        seen = torch.ones(BLOCK)
        encoder.register_forward_hook(lambda module, inputs, output: seen.shape and None)

    after_update(run, register)


def cycles(run: WorldModelOrchestrator) -> None:
    """Leave tensors in reference cycles, which only the garbage collector can free."""

    def leave(_: object) -> None:
        node: dict[str, Any] = {"data": torch.ones(BLOCK)}
        node["self"] = node

    after_update(run, leave)


def exceptions_kept(run: WorldModelOrchestrator) -> None:
    """Keep exceptions; their tracebacks keep the frames, and those their local variables."""
    workflow: Any = run.parts.workflow
    workflow.errors = []

    def fail(_: object) -> None:
        scratch = torch.ones(BLOCK)
        try:
            raise ValueError(f"not finite, {scratch.numel()} numbers")
        except ValueError as error:
            workflow.errors.append(error)

    after_update(run, fail)


def results_by_step(run: WorldModelOrchestrator) -> None:
    """Remember something under each step's number: a cache without a limit."""
    workflow: Any = run.parts.workflow
    workflow.by_update, count = {}, itertools.count()
    after_update(run, lambda _: workflow.by_update.update({next(count): np.ones(BLOCK, np.float32)}))


def optimizers_replaced(run: WorldModelOrchestrator) -> None:
    """Make a new optimiser at each update and keep the old one."""
    workflow: Any = run.parts.workflow
    workflow.old_optimizers = []
    parameters = list(workflow.controller.critic.parameters())
    after_update(run, lambda _: workflow.old_optimizers.append(LaProp(parameters, workflow.config.optimizer)))


def callbacks_kept(run: WorldModelOrchestrator) -> None:
    """Schedule a callback at each update and never run it; its closure holds a tensor."""
    run_any: Any = run
    run_any.callbacks = []

    def schedule(_: object) -> None:
        snapshot = torch.ones(BLOCK)
        run_any.callbacks.append(lambda: snapshot.mean())

    after_update(run, schedule)


def queue_not_drained(run: WorldModelOrchestrator) -> None:
    """Put pictures into a queue that nobody reads."""
    reports: Any = run.reports
    reports.pictures = queue.Queue()
    after_sample(run, lambda batch: reports.pictures.put(_an_observation(batch)[0].numpy().copy()))


def deque_without_limit(run: WorldModelOrchestrator) -> None:
    """Hold the latest latents in a deque without `maxlen`."""
    workflow: Any = run.parts.workflow
    workflow.recent = collections.deque()
    after_update(run, lambda updated: workflow.recent.append(updated.deter))


def metrics_history(run: WorldModelOrchestrator) -> None:
    """Append plain numbers to a history that is never shortened: no tensor, no array."""
    run_any: Any = run
    run_any.history, count = [], itertools.count()

    def remember(_: object) -> None:
        run_any.history.extend({"update": next(count), "loss": float(i)} for i in range(400))

    after_update(run, remember)


def _an_observation(batch: Any) -> torch.Tensor:
    return next(iter(batch.observation.values()))
