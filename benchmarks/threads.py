"""Compare the number of threads that a run chooses with fixed numbers, on a quiet and a busy machine.

`python -m benchmarks.threads --out docs/results/performance/threads.json` needs two idle cores for 25
minutes. Each block first chooses a number of threads as a new run would, then times complete updates with
each number in turn. The result is the update time with the chosen number divided by the best time (median of
five blocks).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.envs import spec_of
from reverie.orchestration.recipes import recipe_of
from reverie.orchestration.threads import candidates, choose, measure
from reverie.utils.cpus import usable_cpus

BLOCKS = 5
SITUATIONS: dict[str, dict[str, int]] = {
    "quiet": {"busy": 0},
    "four busy processes": {"busy": 4},
    "16 threads allowed": {"busy": 0, "cpus": 16},
}


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep `count` processes busy inside the `with` block, on this process's CPUs."""
    with ExitStack() as running:
        for _ in range(count):
            process = running.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            running.callback(process.kill)
        time.sleep(1.0 if count else 0.0)
        yield


def times(update: Callable[[], object], counts: list[int], seconds: float) -> dict[int, list[float]]:
    """Time updates with each thread count in turn, for `seconds` each. Return their seconds by count."""
    found: dict[int, list[float]] = {count: [] for count in counts}
    while sum(found[counts[0]]) < seconds or len(found[counts[0]]) < 3:
        for count in counts:
            torch.set_num_threads(count)
            began = time.perf_counter()
            update()
            found[count].append(time.perf_counter() - began)
    return found


def block(settings: list[str], cpus: int, seconds: float) -> dict[str, Any]:
    """Choose a number of threads, time every number, and return the results."""
    [job] = compose_jobs([*settings, "device=cpu"])
    config = typed(job)
    recipe, env = recipe_of(config), spec_of(config.env)
    counts, load = candidates(cpus), os.getloadavg()[0]
    began = time.perf_counter()
    measured = measure(recipe.updates_on_zeros(config, env), counts)
    took, (chosen, reason) = time.perf_counter() - began, choose(measured)
    *_, whole = recipe.updates_on_zeros(config, env)
    raw = times(whole, counts, seconds)
    middle = {count: median(each) for count, each in raw.items()}
    return {
        "load": load,
        "measured_s": measured,
        "measuring_s": took,
        "chosen": chosen,
        "reason": reason,
        "update_s": raw,
        "over_best": middle[chosen] / min(middle.values()),
    }


def main() -> None:
    """Run the benchmark and write its raw data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cpus", type=int, default=usable_cpus(), help="CPUs to choose for")
    parser.add_argument("--seconds", type=float, default=8.0, help="time for each number of threads")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("settings", nargs="*", default=["experiment=dreamer_catch"])
    asked = parser.parse_args()
    found: dict[str, Any] = {"settings": asked.settings, "torch": torch.__version__, "cpus": usable_cpus()}
    for name, situation in SITUATIONS.items():
        with busy_processes(situation["busy"]):
            cpus = situation["cpus"] if "cpus" in situation else asked.cpus
            blocks = [block(asked.settings, cpus, asked.seconds) for _ in range(asked.blocks)]
        found[name] = {"over_best": median(each["over_best"] for each in blocks), "blocks": blocks}
        print(
            f"{name}: chose {[each['chosen'] for each in blocks]}, {found[name]['over_best']:.2f} of the best"
        )
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
