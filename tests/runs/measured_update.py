"""Measure a real update and its plan in a separate process: `python measured_update.py <overrides>`.

It prints a JSON object with bytes. `planned` includes the plan's rows and the nodes of the graph. `measured`
is the peak after any operator of the second update, minus the memory before the networks. `kept` is the
memory that libraries retain after two updates.
"""

import gc
import json
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from heapwatch.counters.glibc import in_use_bytes
from torch.utils._python_dispatch import TorchDispatchMode

from reverie.buffers import EpisodeReplayBuffer, StoredLatent
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import typed
from reverie.envs import VectorEnvironment, make_environment
from reverie.orchestration.dreamer.recipe import build_workflow
from reverie.orchestration.orchestrator import build_replay
from reverie.orchestration.recipes import recipe_of
from reverie.planning.constants import GRAPH_BYTES_PER_OPERATOR


class InUsePeak(TorchDispatchMode):
    """Reads the bytes in use after each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.peak = max(self.peak, in_use_bytes())
        return result


def update_twice(
    config: DreamerTrainConfig, environment: VectorEnvironment, replay: EpisodeReplayBuffer, second: Any
) -> None:
    """Run an update, and a second one inside the context `second`, as the training loop does."""
    workflow = build_workflow(config, environment.spec)
    updated = None
    for context in (nullcontext(), second):
        with context:
            batch = replay.sample(config.training.batch_size).to(workflow.device)
            updated = workflow.update(batch)
    assert updated is not None


def fill(config: DreamerTrainConfig, environment: VectorEnvironment, replay: EpisodeReplayBuffer) -> None:
    """Play with zero latents until windows can be sampled."""
    envs, size = config.env.num_envs, environment.spec.action.size
    action = np.eye(size, dtype=np.float32)[np.zeros(envs, np.int64)]
    latent = StoredLatent(
        torch.zeros(envs, config.model.deter), torch.zeros(envs, config.model.stoch, dtype=torch.uint8)
    )
    arrival = environment.reset()
    for _ in range(3 * config.training.sequence_length):
        replay.add(arrival, action, latent)
        arrival = environment.step(action)


def main() -> None:
    torch.set_num_threads(1)
    config = typed(compose_jobs(sys.argv[1:])[0], DreamerTrainConfig)
    with TemporaryDirectory() as folder, closing(make_environment(config.env, config.seed)) as environment:
        assert isinstance(environment, VectorEnvironment)
        plan = recipe_of(config).dry_run(config, environment.spec)
        replay = build_replay(config, recipe_of(config).replay_spec(config, environment.spec), Path(folder))
        fill(config, environment, replay)
        at_start = in_use_bytes()
        # This triggers one-time allocations of libraries.
        update_twice(config, environment, replay, nullcontext())
        gc.collect()
        before, in_use = in_use_bytes(), InUsePeak()
        update_twice(config, environment, replay, in_use)
    measured = in_use.peak - before
    planned = sum(plan.peak.values()) + GRAPH_BYTES_PER_OPERATOR * plan.operators
    print(json.dumps({"planned": planned, "measured": measured, "kept": before - at_start}))


if __name__ == "__main__":
    main()
