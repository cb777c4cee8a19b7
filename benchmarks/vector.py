"""Compare agent steps per second of Catch on tensors with the scalar environment, on one core.

`python -m benchmarks.vector --out docs/results/performance/vector.json` needs one core for two minutes.
Rounds alternate between the environments. Times are CPU seconds of this process, so other processes matter
less. `env` only steps the environment. `collect` also includes the policy of `dreamer_catch` and the replay.
"""

import argparse
import json
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from examples.catch_tensors import CatchTensors
from reverie.buffers import EpisodeReplayBuffer
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import typed
from reverie.envs import make_environment
from reverie.envs.registered import register_maker
from reverie.orchestration.dreamer.dry_run import replay_spec
from reverie.orchestration.dreamer.recipe import build_workflow

ROUNDS = 5
COMMON = ("experiment=dreamer_catch", "device=cpu", "training.learning_starts=9216", "training.train_ratio=1")
REPLAY = ("buffer.capacity=50000", "buffer.chunk_length=8")
CASES = {
    "env=catch, 4 games": ("env=catch", "env.num_envs=4"),
    "env=catch, 1,024 games": ("env=catch", "env.num_envs=1024"),
    "env=vector, 1,024 games on tensors": ("env=vector", "env.num_envs=1024"),
}


def rate(config: DreamerTrainConfig, seconds: float, acts: bool) -> float:
    """Return agent steps per CPU second of one round, after ten steps to warm up."""
    with closing(make_environment(config.env, 0)) as environment:
        spec = environment.spec
        workflow, replay = build_workflow(config, spec), EpisodeReplayBuffer(replay_spec(config, spec))
        step, steps = environment.reset(), 0
        still: Any = np.tile(np.eye(spec.action.size, dtype=np.float32)[1], (spec.num_envs, 1))

        def act() -> int:
            nonlocal step
            action: Any = still[: len(step.reward)]
            if acts:
                collected = workflow.collect_step(step)
                replay.add(step, collected.action, collected.latent, step.envs)
                action = collected.action
            step = environment.step(action)
            return int((~step.is_first).sum())

        for _ in range(10):
            act()
        began = time.process_time()
        while time.process_time() - began < seconds:
            steps += act()
        return steps / (time.process_time() - began)


def main() -> None:
    """Measure all cases in turn, and write the medians and all rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=4.0, help="CPU seconds per round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    made = f"env.id={register_maker(CatchTensors)}"
    configs = {
        name: typed(compose_jobs([*COMMON, *REPLAY, *case, made])[0], DreamerTrainConfig)
        for name, case in CASES.items()
    }
    rounds: dict[str, dict[str, list[float]]] = {name: {"env": [], "collect": []} for name in CASES}
    for _ in range(asked.rounds):
        for name, config in configs.items():
            for kind, found in rounds[name].items():
                found.append(rate(config, asked.seconds, kind == "collect"))
    medians = {
        name: {kind: round(median(all_)) for kind, all_ in found.items()} for name, found in rounds.items()
    }
    asked.out.write_text(json.dumps({"steps_per_cpu_second": medians, "rounds": rounds}, indent=1) + "\n")
    print(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
