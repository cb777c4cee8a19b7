"""Time two checkouts of Reverie against each other, in one run on one core.

    python against.py <name>=<checkout> <name>=<checkout> [rounds=9] [out=against.json] [row ...]

Each checkout runs in a separate process with its own .venv/bin/python and one thread. The two processes take
turns block by block. Blocks are measured in CPU time, because other processes disturb CPU time less than wall
time.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

ROWS = {
    "update of dreamer_ataripong": ("experiment=dreamer_ataripong", "precision=float32"),
    "update of dreamer_ataripong, bfloat16": ("experiment=dreamer_ataripong", "precision=bfloat16"),
    "update of size1m, 16 x 64": (
        "experiment=dreamer_ataripong100k",
        "env.game=pong",
        "model=size1m",
        "training.batch_size=16",
        "training.sequence_length=64",
        "precision=float32",
    ),
    "policy step": ("experiment=dreamer_ataripong", "precision=float32"),
    "collect": ("experiment=dreamer_catch", "precision=float32"),
    "sample": ("experiment=dreamer_ataripong",),
}
SECONDS = 0.5
COMMON = ("device=cpu", "compile=none", "seed=1")


def serve() -> None:
    """Answer each line `<row> <count>` with the CPU seconds of `count` calls."""
    import torch

    torch.set_num_threads(1)
    with ExitStack() as opened:
        calls: dict[str, Callable[[], object]] = {}
        for line in sys.stdin:
            row, count = json.loads(line)
            if row not in calls:
                calls[row] = prepared(row, opened)
            before = time.process_time()
            for _ in range(count):
                calls[row]()
            print(json.dumps(time.process_time() - before), flush=True)


def prepared(row: str, opened: ExitStack) -> Callable[[], object]:
    """Return the call that a row measures."""
    from tempfile import TemporaryDirectory

    import torch

    from reverie.config.compose import compose_jobs
    from reverie.config.dreamer import DreamerTrainConfig
    from reverie.config.resolve import typed
    from reverie.envs import make_environment
    from reverie.orchestration.dreamer.recipe import build_workflow
    from reverie.orchestration.orchestrator import build_replay
    from reverie.orchestration.recipes import recipe_of

    folder = opened.enter_context(TemporaryDirectory())
    config = typed(
        compose_jobs([*ROWS[row], *COMMON, f"run_dir={folder}/run", "buffer.capacity=20000"])[0],
        DreamerTrainConfig,
    )
    torch.manual_seed(0)
    environment = make_environment(config.env, config.seed)
    opened.callback(environment.close)
    workflow = build_workflow(config, environment.spec)
    replay = build_replay(config, recipe_of(config).replay_spec(config, environment.spec), Path(folder))
    steps = [environment.reset()]

    def collect() -> None:
        output = workflow.collect_step(steps[0])
        replay.add(steps[0], output.action, output.latent if replay.stores_latents else None)
        assert not isinstance(output.action, torch.Tensor)
        steps[0] = environment.step(output.action)

    windows = config.training.batch_size
    for _ in range(600):
        collect()
    batch = replay.sample(windows)
    return {
        "update": lambda: workflow.update(batch),
        "policy": lambda: workflow.collect_step(steps[0]),
        "collect": collect,
        "sample": lambda: replay.sample(windows),
    }[row.split()[0]]


class Checkout:
    """A process that times the calls of one checkout."""

    def __init__(self, folder: str) -> None:
        command = [f"{folder}/.venv/bin/python", os.path.abspath(__file__), "serve"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, row: str, count: int) -> float:
        """Return the CPU seconds of `count` calls."""
        assert self.process.stdin and self.process.stdout
        print(json.dumps([row, count]), file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def main() -> None:
    """Compare two checkouts."""
    given = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    rounds, out = int(given.pop("rounds", "9")), given.pop("out", None)
    rows = [
        row
        for row in ROWS
        if not (asked := [w for w in sys.argv[1:] if "=" not in w]) or row.split()[0] in asked
    ]
    checkouts = {name: Checkout(folder) for name, folder in given.items()}
    first, second = checkouts
    found = {}
    for row in rows:
        counts = {}
        for name, checkout in checkouts.items():
            checkout.seconds(row, 1)
            counts[name] = max(1, round(SECONDS / max(1e-6, checkout.seconds(row, 3) / 3)))
        count = min(counts.values())
        seconds: dict[str, list[float]] = {name: [] for name in checkouts}
        for _ in range(rounds):
            for name, checkout in checkouts.items():
                seconds[name].append(checkout.seconds(row, count) / count)
        ratios = [b / a for a, b in zip(seconds[first], seconds[second], strict=True)]
        found[row] = {
            "calls_per_block": count,
            "cpu_seconds_per_call": seconds,
            "ratio": statistics.median(ratios),
        }
        shown = ", ".join(
            f"{name} {1e3 * statistics.median(times):.3f} ms" for name, times in seconds.items()
        )
        print(f"{row}: {shown}: {second} takes {statistics.median(ratios):.3f} of {first}", flush=True)
    if out:
        cpu = next(
            line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
        )
        Path(out).write_text(
            json.dumps({"cpu": cpu.partition(": ")[2], "load": os.getloadavg(), "rows": found}) + "\n"
        )


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
