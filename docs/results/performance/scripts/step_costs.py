"""Print CPU seconds of an update, a collect iteration, a policy step (8 envs) and a sample with one thread.

To compare two checkouts, run `OMP_NUM_THREADS=1 python step_costs.py` in each of them in turn.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.orchestration.recipes import recipe_of

SETTINGS = (
    "experiment=dreamer_ataripong",
    "device=cpu",
    "compile=none",
    "env.num_envs=8",
    "buffer.capacity=20000",
    "training.total_timesteps=20000",
)


def cost(function: Callable[[], object], times: int) -> float:
    """Return the mean CPU seconds of a call."""
    before = time.process_time()
    for _ in range(times):
        function()
    return (time.process_time() - before) / times


def main() -> None:
    torch.set_num_threads(1)
    config = typed(compose_jobs(SETTINGS)[0])
    parts = recipe_of(config).build(config, Path(tempfile.mkdtemp()))
    workflow, replay, environment = parts.workflow, parts.replay, parts.environment
    arrivals = [environment.reset()]

    def iteration() -> None:
        output = workflow.collect_step(arrivals[0])
        replay.add(arrivals[0], output.action, output.latent if replay.stores_latents else None)
        arrivals[0] = environment.step(output.action)

    for _ in range(150):
        iteration()
    batch = replay.sample(config.training.batch_size)
    workflow.update(batch)
    workflow.update(batch)
    rounds = [
        {
            "update": cost(lambda: workflow.update(batch), 6),
            "collect": cost(iteration, 150),
            "policy": cost(lambda: workflow.collect_step(arrivals[0]), 150),
            "sample": cost(lambda: replay.sample(16), 150),
        }
        for _ in range(3)
    ]
    print(json.dumps({name: min(each[name] for each in rounds) for name in rounds[0]}))
    environment.close()


if __name__ == "__main__":
    main()
