"""Measure the latency of `Agent.act` and of its exported function by model size, on one thread.

`python -m benchmarks.act_latency --out docs/results/performance/act_latency.json` needs one core for 20
minutes. Networks are random. Blocks of calls alternate between PyTorch and onnxruntime (the runner in
`examples/`), and include the conversion of the observation and all random numbers. `wall` is what a control
loop sees, including other processes on the core. `cpu` is the CPU time of the thread, without them.
"""

import argparse
import json
import os
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import torch
from reverie_export import export_onnx

from benchmarks.suite.load import read_load
from benchmarks.suite.machine import machine_facts
from reverie import Agent
from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.orchestration.recipes import recipe_of
from reverie.planning.recipe import environment_spec

RUNNER = Path(__file__).parents[1] / "examples" / "onnx_runner.py"
SIZES = ("size1m", "size12m", "size25m", "size50m", "size100m", "size200m")
ENVIRONMENTS = {"image": ("env=atari",), "vector": ("env=gymnasium", "env.id=CartPole-v1")}
VARIANTS = ("torch", "onnxruntime")
ROUNDS, CALLS, WARM_UP = 10, 100, 20


def random_agent(*settings: str) -> Agent:
    """Return an agent with random networks."""
    common = ["experiment=dreamer", "device=cpu", "precision=float32", "compile=none"]
    config = typed(compose_jobs([*common, *settings])[0])
    recipe = recipe_of(config)
    return Agent(config, recipe.build_agent(config, environment_spec(config, recipe)), step=None)


def timed(act: Callable[[Any], Any], observations: list[Any]) -> list[tuple[float, float]]:
    """Return the wall and CPU seconds of one call per observation."""
    seconds: list[tuple[float, float]] = []
    for observation in observations:
        wall, cpu = time.perf_counter(), time.thread_time()
        act(observation)
        seconds.append((time.perf_counter() - wall, time.thread_time() - cpu))
    return seconds


def measure(kind: str, size: str, calls: int) -> dict[str, Any]:
    """Return the latencies of both variants, and their ratios round by round."""
    agent = random_agent(f"model={size}", *ENVIRONMENTS[kind])
    agent.observation_space.seed(0)
    observations = [agent.observation_space.sample() for _ in range(calls)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "agent.onnx"
        about = export_onnx(agent, path)
        runner = runpy.run_path(str(RUNNER))["Runner"](str(path))
        file_bytes = path.stat().st_size
    acts = dict(zip(VARIANTS, (agent.act, runner.act), strict=True))
    for act in acts.values():
        timed(act, observations[:WARM_UP])
    before = read_load()
    rounds = [{name: timed(act, observations) for name, act in acts.items()} for _ in range(ROUNDS)]
    row: dict[str, Any] = {
        "observation": kind,
        "size": size,
        "parameters": about["parameters"],
        "file_bytes": file_bytes,
        "others_cpu": round(read_load().others_since(before), 3),
        "load_average": os.getloadavg()[0],
    }
    for name in VARIANTS:
        wall, cpu = np.array([call for each in rounds for call in each[name]]).T
        row[name] = {
            clock: {"median": float(np.median(x)), "p99": float(np.percentile(x, 99)), "calls": len(x)}
            for clock, x in (("wall", wall), ("cpu", cpu))
        }
    medians = [{name: np.median(np.array(each[name])[:, 1]) for name in VARIANTS} for each in rounds]
    row["cpu_ratio_by_round"] = [float(each["torch"] / each["onnxruntime"]) for each in medians]
    row["cpu_ratio"] = median(row["cpu_ratio_by_round"])
    return row


def main() -> None:
    """Measure all sizes, print a line for each, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--calls", type=int, default=CALLS, help="calls per round")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    facts = {**machine_facts(torch.device("cpu")), "onnxruntime": onnxruntime.__version__, "threads": 1}
    rows: list[dict[str, Any]] = []
    for kind in ENVIRONMENTS:
        for size in asked.sizes:
            row = measure(kind, size, asked.calls)
            rows.append(row)
            shown = " ".join(
                f"{name} {1e3 * row[name][clock]['median']:.2f}/{1e3 * row[name][clock]['p99']:.2f}"
                for clock in ("cpu", "wall")
                for name in VARIANTS
            )
            print(f"{kind} {size}: {shown} ms, ratio {row['cpu_ratio']:.2f}", flush=True)
            asked.out.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
