"""Measure the CPU time of an update with each objective, in turn in one process. Print JSON."""

import json
import statistics
import time

import torch

from benchmarks.suite.data import random_batch
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import typed
from reverie.envs import spec_of
from reverie.orchestration.dreamer.recipe import build_workflow

OBJECTIVES = {
    "reconstruction": (),
    "barlow": ("world_model.objective=barlow",),
    "barlow, decoder off": ("world_model.objective=barlow", "world_model.decoder=off"),
    "infonce": ("world_model.objective=infonce",),
    "imagine_last=8": ("controller.imagine_last=8",),
}
ROUNDS, WARM_UP = 12, 2


def times(experiment: str) -> dict[str, float]:
    """Return the median CPU milliseconds of an update by objective."""
    updates = {}
    for name, changes in OBJECTIVES.items():
        [job] = compose_jobs([f"experiment={experiment}", "device=cpu", "compile=inductor", *changes])
        config = typed(job, DreamerTrainConfig)
        workflow = build_workflow(config, spec_of(config.env))
        updates[name] = (workflow, random_batch(config, workflow.env))
    taken: dict[str, list[float]] = {name: [] for name in updates}
    for _ in range(WARM_UP + ROUNDS):
        for name, (workflow, batch) in updates.items():
            before = time.process_time()
            workflow.update(batch)
            taken[name].append(1e3 * (time.process_time() - before))
    return {name: round(statistics.median(each[WARM_UP:]), 1) for name, each in taken.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: times(name) for name in ("dreamer_ataripong", "dreamer_catch")}, indent=1))
