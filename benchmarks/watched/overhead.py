"""Measure the cost of a watch by alternating blocks of steps with and without it in one process. Print JSON.

    python -m benchmarks.watched.overhead [seconds of each loop]

`ratio` compares the CPU time of watched and unwatched steps. `own_share` is the watch's own measurement.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.suite.data import random_batch
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import typed
from reverie.envs import spec_of
from reverie.memory import Watch
from reverie.orchestration.dreamer.recipe import build_workflow

_BLOCK_SECONDS = 4.0


def dreamer() -> Callable[[], object]:
    """Return an update of size1m with 8 windows of 16 steps of Pong."""
    [job] = compose_jobs(["experiment=dreamer_ataripong", "device=cpu", "compile=none"])
    config = typed(job, DreamerTrainConfig)
    workflow = build_workflow(config, spec_of(config.env))
    batch = random_batch(config, workflow.env)
    return lambda: workflow.update(batch)


def linear() -> Callable[[], object]:
    """Return an update of a tiny linear model, as the fastest training step."""
    model, inputs = nn.Linear(4, 1, bias=False), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    return step


def measure(step: Callable[[], object], seconds: float) -> dict[str, float]:
    """Return the CPU time per step with and without a watch, together with the watch's own statistics."""
    costs: dict[bool, list[float]] = {True: [], False: []}
    with Watch(automatic=True) as watch:
        assert watch._phase is not None
        end = time.process_time() + seconds
        is_watched = True
        while time.process_time() < end:
            began, steps = time.process_time(), 0
            while time.process_time() - began < _BLOCK_SECONDS:
                step()
                steps += 1
            costs[is_watched].append((time.process_time() - began) / steps)
            is_watched = not is_watched
            if is_watched:
                watch._phase._hook = register_optimizer_step_post_hook(watch._phase._after_step)
            else:
                watch._phase._hook.remove()
    report = watch.report()
    ratios = [on / off for on, off in zip(costs[True][1:], costs[False][1:], strict=False)]
    return {
        "steps_per_second": round(1 / statistics.median(costs[False]), 1),
        "ratio": round(statistics.median(ratios), 4),
        "lowest": round(min(ratios), 4),
        "highest": round(max(ratios), 4),
        "blocks": len(ratios),
        "samples": report.samples,
        "own_share": round(report.own_seconds / (seconds / 2), 5),
        "verdict_is_leak": float(report.verdict == "leak"),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    budget = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    print(json.dumps({make.__name__: measure(make(), budget) for make in (dreamer, linear)}, indent=1))
