"""Time training with and without `training.overlap` in turn: `OMP_NUM_THREADS=1 python overlap.py <json>`.

Each case consists of two runs in this process with the same steps and updates. Blocks alternate (A B B A),
and a ratio compares two blocks of one round. The result reports whether both runs learned bit-for-bit
identical parameters.
"""

import json
import logging
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import torch

from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.orchestration.recipes import recipe_of
from reverie.orchestration.run import open_run
from reverie.orchestration.signals import Signals
from reverie.orchestration.world_model_orchestrator import WorldModelOrchestrator

ROUNDS, UPDATES = 6, 6
SLOW_SECONDS = 0.02
UNDISTURBED = (
    "device=cpu",
    "compile=none",
    "training.total_timesteps=1000000",
    "training.warmup_steps=0",
    "training.video_interval=0",
    "logger.tensorboard=false",
    "logger.progress=plain",
)
CASES = {
    "Catch, 4 environments": ("experiment=dreamer_catch", "training.learning_starts=100"),
    "Pong, 8 emulators": ("experiment=dreamer_ataripong", "training.learning_starts=200"),
    "CartPole, 4 environments of 20 ms a step": (
        "experiment=dreamer_cartpole",
        "training.learning_starts=100",
        # This makes one update per step of all environments.
        "training.train_ratio=64",
        "env.wrappers=[overlap.Slow]",
    ),
}


class Slow(gymnasium.Wrapper):
    """A slow step without CPU time, like a robot's."""

    def step(self, action: Any) -> Any:
        time.sleep(SLOW_SECONDS)
        return super().step(action)


def opened(stack: ExitStack, settings: tuple[str, ...], overlap: bool) -> WorldModelOrchestrator:
    folder = stack.enter_context(TemporaryDirectory())
    own = (f"run_dir={folder}/run", f"training.overlap={str(overlap).lower()}")
    config = typed(compose_jobs((*settings, *UNDISTURBED, *own))[0])
    run = stack.enter_context(open_run(config, Signals(), recipe_of(config)))
    assert isinstance(run, WorldModelOrchestrator)
    return run


class Block:
    """Runs the training loop for several updates at a time."""

    def __init__(self, run: WorldModelOrchestrator) -> None:
        self.run, self.time_step = run, run._begin()

    def __call__(self, updates: int) -> dict[str, float]:
        """Train for `updates` updates or one more. Return the time per update, and per part of the loop."""
        run, before, began = self.run, self.run.updates, time.perf_counter()
        run.watch.flush()
        while run.updates < before + updates:
            run._stop_reason(self.time_step)
            following = run._collect(self.time_step)
            run._learn()
            with run.watch("collect"):
                self.time_step = following.result()
        made = run.updates - before
        shares = {name: round(value, 4) for name, value in run.watch.flush().items() if value > 1e-3}
        return {"seconds_per_update": (time.perf_counter() - began) / made, **shares}


def measured(settings: tuple[str, ...]) -> dict[str, Any]:
    with ExitStack() as stack:
        blocks = {overlap: Block(opened(stack, settings, overlap)) for overlap in (False, True)}
        for block in blocks.values():
            block(4)
        # Alternate the order, because a falling load would favor the second run.
        orders = [(False, True), (True, False)] * (ROUNDS // 2)
        rounds = [{name: blocks[name](UPDATES) for name in order} for order in orders]
        states = [list(block.run.parts.workflow.world_model.parameters()) for block in blocks.values()]
        seconds = [{name: each["seconds_per_update"] for name, each in turn.items()} for turn in rounds]
        return {
            "seconds_per_update_without": median(each[False] for each in seconds),
            "seconds_per_update_with": median(each[True] for each in seconds),
            "ratios": [round(each[True] / each[False], 3) for each in seconds],
            "ratio": median(each[True] / each[False] for each in seconds),
            "updates": [block.run.updates for block in blocks.values()],
            "parameters_are_equal": all(map(torch.equal, *states)),
            "rounds": [{"without": turn[False], "with": turn[True]} for turn in rounds],
        }


def main() -> None:
    # The settings import `overlap.Slow` from here.
    sys.path.insert(0, str(Path(__file__).parent))
    result: dict[str, Any] = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg(),
    }
    logging.disable(logging.INFO)
    for name, settings in CASES.items():
        result[name] = measured(settings)
        print(name, {key: value for key, value in result[name].items() if key != "rounds"}, flush=True)
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
