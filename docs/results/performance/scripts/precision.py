"""Print CPU seconds per update in float32 and bfloat16 in turn, with and without `keep_heap`, as JSON.

OMP_NUM_THREADS=1 python precision.py [rounds] > precision.json

This needs a processor with bfloat16 multiplication, and an idle core.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from heapwatch.counters.glibc import keep_heap

from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.orchestration.recipes import recipe_of

CASES = {
    "dreamer_ataripong": ("experiment=dreamer_ataripong",),
    "size1m, 16 x 64": ("model=size1m", "training.batch_size=16", "training.sequence_length=64"),
    # The preset until 2026-11-26.
    "dreamer_catch": (
        "experiment=dreamer_catch",
        "training.total_timesteps=400000",
        "training.train_ratio=64",
        "training.sequence_length=16",
        "controller.horizon=15",
    ),
}
COMMON = ("device=cpu", "compile=inductor", "buffer.capacity=20000", "env.num_envs=8")
PRECISIONS = ("float32", "bfloat16")
STEPS, WARM_UP = 80, 3


def prepared(*overrides: str):
    """Return a function that makes an update with a batch of random play."""
    config = typed(compose_jobs((*COMMON, *overrides))[0])
    parts = recipe_of(config).build(config, Path(tempfile.mkdtemp()))
    workflow, replay, environment = parts.workflow, parts.replay, parts.environment
    arrival = environment.reset()
    for _ in range(STEPS):
        output = workflow.collect_step(arrival)
        replay.add(arrival, output.action, output.latent if replay.stores_latents else None)
        arrival = environment.step(output.action)
    environment.close()
    batch = replay.sample(config.training.batch_size)
    return lambda: workflow.update(batch)


def medians(updates, rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of each update, measured in turn."""
    seconds = {name: [] for name in updates}
    for number in range(WARM_UP + rounds):
        for name, update in updates.items():
            before = time.process_time()
            update()
            if number >= WARM_UP:
                seconds[name].append(time.process_time() - before)
    return {name: statistics.median(each) for name, each in seconds.items()}


def measured(case: str, keeps_heap: bool, rounds: int) -> None:
    """Print the medians of a case in its own process, because glibc keeps more memory after large frees."""
    torch.set_num_threads(1)
    if keeps_heap:
        keep_heap()
    updates = {name: prepared(*CASES[case], f"precision={name}") for name in PRECISIONS}
    print(json.dumps(medians(updates, rounds)))


def main() -> None:
    if len(sys.argv) == 4:
        return measured(sys.argv[1], sys.argv[2] == "True", int(sys.argv[3]))
    found = {}
    for case in CASES:
        for keeps_heap in (False, True):
            command = [sys.executable, __file__, case, str(keeps_heap), [*sys.argv, "12"][1]]
            result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[f"{case}, heap {'kept' if keeps_heap else 'as glibc has it'}"] = json.loads(result.stdout)
    versions = {"torch": torch.__version__, "cpu": torch.cpu.get_capabilities()["cpu_name"]}
    print(json.dumps(found | {"versions": versions}, indent=1))


if __name__ == "__main__":
    main()
