"""Faults that retain tensors, arrays and objects in growing containers."""

import collections
import gc
import itertools
import queue
import weakref
from typing import Any

import numpy as np
import torch

from reverie.models import LaProp
from reverie.orchestration.world_model_orchestrator import WorldModelOrchestrator
from reverie.testing.faults import attach

from .wrap import after_environment_step, after_sample, after_update

BLOCK = 32_000
"""Number of float32 values per fault if the run itself has no large data: 128 kB."""


def observations_kept(run: WorldModelOrchestrator) -> None:
    """Keep all observations in a list, as a replay without eviction would."""
    kept = attach(run, "arrivals", [])
    after_environment_step(run, lambda arrival: kept().append(arrival))


def views_of_batches(run: WorldModelOrchestrator) -> None:
    """Keep one row of each batch. The view keeps the whole batch alive."""
    kept = attach(run, "first_frames", [])
    after_sample(run, lambda batch: kept().append(_an_observation(batch)[0, 0]))


def hook_each_update(run: WorldModelOrchestrator) -> None:
    """Register another forward hook at each update, without removing any."""
    encoder = weakref.proxy(run.parts.workflow.world_model.encoder)

    def register(_: object) -> None:
        seen = torch.ones(BLOCK)
        encoder.register_forward_hook(lambda module, inputs, output: seen.shape and None)

    after_update(run, register)


def cycles(run: WorldModelOrchestrator) -> None:
    """Drop old tensors in reference cycles that only a full garbage collection frees."""

    def drop(_: object) -> None:
        node: dict[str, Any] = {"data": torch.ones(BLOCK)}
        node["self"] = node
        # An object in use for a while reaches the oldest generation by itself. This call speeds that up.
        gc.collect(1)

    after_update(run, drop)


def exceptions_kept(run: WorldModelOrchestrator) -> None:
    """Keep exceptions. Their tracebacks keep the frames with their local variables alive."""
    kept = attach(run.parts.workflow, "errors", [])

    def fail(_: object) -> None:
        scratch = torch.ones(BLOCK)
        try:
            raise ValueError(f"not finite, {scratch.numel()} numbers")
        except ValueError as error:
            kept().append(error)

    after_update(run, fail)


def results_by_step(run: WorldModelOrchestrator) -> None:
    """Store an entry for each step number, as an unbounded cache would."""
    kept, count = attach(run.parts.workflow, "by_update", {}), itertools.count()
    after_update(run, lambda _: kept().update({next(count): np.ones(BLOCK, np.float32)}))


def optimizers_replaced(run: WorldModelOrchestrator) -> None:
    """Create a new optimizer at each update, and keep the old one."""
    kept = attach(run.parts.workflow, "old_optimizers", [])
    workflow = weakref.proxy(run.parts.workflow)

    def replace(_: object) -> None:
        kept().append(LaProp(list(workflow.world_model.parameters()), workflow.config.optimizer))

    after_update(run, replace)


def callbacks_kept(run: WorldModelOrchestrator) -> None:
    """Schedule a callback at each update without running it. Its closure references a tensor."""
    kept = attach(run, "callbacks", [])

    def schedule(_: object) -> None:
        snapshot = torch.ones(BLOCK)
        kept().append(lambda: snapshot.mean())

    after_update(run, schedule)


def queue_not_drained(run: WorldModelOrchestrator) -> None:
    """Put images into a queue that is never read."""
    kept = attach(run.reports, "pictures", queue.Queue())
    after_sample(run, lambda batch: kept().put(_an_observation(batch)[0].numpy().copy()))


def deque_without_limit(run: WorldModelOrchestrator) -> None:
    """Keep the latest batches in a deque without `maxlen`."""
    kept = attach(run.parts.workflow, "recent", collections.deque())
    after_sample(run, lambda batch: kept().append(batch))


def metrics_history(run: WorldModelOrchestrator) -> None:
    """Append plain numbers, not tensors or arrays, to an unbounded history."""
    kept, count = attach(run, "history", []), itertools.count()

    def remember(_: object) -> None:
        kept().extend({"update": next(count), "loss": float(i)} for i in range(400))

    after_update(run, remember)


def _an_observation(batch: Any) -> torch.Tensor:
    return next(iter(batch.observation.values()))
