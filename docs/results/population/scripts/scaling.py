"""Measure a generation with engine=local and 1 and 2 Ray workers: `scaling.py OUT.json`.

It measures time, traffic and memory of five generations of the preset erl_pendulum with the same members,
after one generation that does not count.
"""

import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch

from reverie.config.compose import compose_jobs
from reverie.config.population import Engine, PopulationTrainConfig
from reverie.config.resolve import typed
from reverie.orchestration.orchestrator import build_replay
from reverie.orchestration.population.dry_run import transfer_bytes
from reverie.orchestration.population.recipe import PopulationRecipe, build_engine
from reverie.orchestration.recipes import recipe_of
from reverie.planning.recipe import environment_spec
from reverie.utils.seeding import seed_global
from reverie.workflows.population.td3 import TrainPhase

GENERATIONS = 5
STORE_GENERATIONS = 30


def composed(*changes: str) -> PopulationTrainConfig:
    return typed(compose_jobs(["experiment=erl_pendulum", "device=cpu", *changes])[0], PopulationTrainConfig)


def store_bytes() -> tuple[float, int]:
    """Return the current MiB and objects in the object store."""
    from ray._private.internal_api import memory_summary

    found = re.search(r"Plasma memory usage ([\d.]+) MiB, (\d+) objects", memory_summary(stats_only=True))
    assert found is not None
    return float(found[1]), int(found[2])


def pss_mb() -> dict[str, float]:
    """Return the proportional memory of this process's children by kind."""
    sums = {"workers": 0.0, "services": 0.0}
    for child in psutil.Process().children(recursive=True):
        kind = "workers" if "GroupWorker" in " ".join(child.cmdline()) else "services"
        sums[kind] += child.memory_full_info().pss / 1e6
    return sums


def measured(config: PopulationTrainConfig, generations: int, folder: Path) -> dict[str, object]:
    """Play and train some generations without evolution, so that the work is the same for each engine."""
    seed_global(config.seed)
    engine = build_engine(config)
    workflow, replay = (
        PopulationRecipe().build_agent(config, engine.spec),
        build_replay(config, recipe_of(config).replay_spec(config, engine.spec), folder),
    )
    training, seconds, store = config.training, {"play": [], "learn": []}, []
    for generation in range(generations + 1):
        began = time.perf_counter()
        played = engine.evaluate(workflow, generation, lambda: False)
        assert played is not None
        seconds["play"].append(round(time.perf_counter() - began, 3))
        for episode in played.episodes:
            replay.add_episode(0, episode)
        phase = TrainPhase(
            seed=config.seed,
            generation=generation,
            members=tuple(range(config.population.size)),
            steps=training.gradient_steps_per_generation,
            accumulation=training.gradient_accumulation_steps,
            batch_size=training.batch_size,
        )
        began = time.perf_counter()
        engine.learn(workflow, replay, phase)
        seconds["learn"].append(round(time.perf_counter() - began, 3))
        if config.engine is Engine.ray:
            store.append(store_bytes())
    found: dict[str, object] = {"seconds": {name: each[1:] for name, each in seconds.items()}}
    if config.engine is Engine.ray:
        found |= {"workers": config.ray.workers, "pss_mb": pss_mb(), "store_mib_objects_after_each": store}
    engine.close()
    return found


def main() -> None:
    torch.set_num_threads(1)
    ray = ["engine=ray", "ray.workers=2"]
    small = [*ray, "population.size=4", "td3.hidden_units=16", "env.time_limit=30"]
    short = ["training.gradient_steps_per_generation=2", "training.batch_size=16", "buffer.capacity=2000"]
    two = composed(*ray)
    sent = transfer_bytes(two, environment_spec(two, recipe_of(two)))
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "machine": f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the start",
            "torch": torch.__version__,
            "local": measured(composed(), GENERATIONS, Path(folder)),
            "ray_1": measured(composed("engine=ray", "ray.workers=1"), GENERATIONS, Path(folder)),
            "ray_2": measured(two, GENERATIONS, Path(folder)),
            "traffic_bytes": {**sent, "total": sum(sent.values())},
            "thirty_small": measured(composed(*small, *short), STORE_GENERATIONS, Path(folder)),
        }
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
