"""Print CPU milliseconds of the parts of an update with 8, 4 and 1 windows in turn, in bfloat16, as JSON.

OMP_NUM_THREADS=1 python sections.py > ../sections.json

Time that does not fall with the number of windows is the cost of many small operators, which ranks cannot
share.
"""

import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict

import torch
from heapwatch.counters.glibc import keep_heap
from precision import CASES, prepared

import reverie.workflows.world_models.dreamer as dreamer
from reverie.workflows.world_models.dreamer import DreamerWorkflow

WINDOWS, WARM_UP, ROUNDS = (8, 4, 1), 4, 12
spent: dict[str, float] = defaultdict(float)


def timed(owner: object, name: str, label: str) -> None:
    """Add the CPU time of each call of a method to its label."""
    function = getattr(owner, name)

    def call(*args, **keywords):
        before = time.process_time()
        result = function(*args, **keywords)
        spent[label] += time.process_time() - before
        return result

    setattr(owner, name, call)


def time_parts(workflow: DreamerWorkflow) -> None:
    """Time the parts of the updates of one workflow."""
    timed(workflow.world_model, "observe", "encoder and scan")
    timed(workflow.world_model, "losses", "decoder and losses of the world model")
    timed(workflow.controller, "losses", "losses of the controller")
    for optimizer in workflow.optimizers.values():
        timed(optimizer, "step", "optimisers")


def measured(case: str) -> dict[str, dict[int, float]]:
    """Return the median milliseconds of each part by number of windows."""
    updates = {}
    for windows in WINDOWS:
        update = prepared(*CASES[case], "precision=bfloat16", f"training.batch_size={windows}")
        time_parts(inspect.getclosurevars(update).nonlocals["workflow"])
        updates[windows] = update
    found = defaultdict(lambda: defaultdict(list))
    for number in range(WARM_UP + ROUNDS):
        for windows, update in updates.items():
            spent.clear()
            before = time.process_time()
            update()
            spent["the update"] = time.process_time() - before
            for label, seconds in spent.items() if number >= WARM_UP else ():
                found[label][windows].append(1000 * seconds)
    return {
        label: {windows: round(statistics.median(each), 1) for windows, each in by_windows.items()}
        for label, by_windows in found.items()
    }


def main() -> None:
    if len(sys.argv) == 2:
        torch.set_num_threads(1)
        keep_heap()
        timed(dreamer, "imagine", "imagination")
        timed(torch.Tensor, "backward", "backward pass")
        return print(json.dumps(measured(sys.argv[1])))
    results = {}
    # Use a process for each case, because torch compiles for at most 8 shapes.
    for case in ("dreamer_ataripong", "dreamer_catch"):
        command = [sys.executable, __file__, case]
        results[case] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    print(json.dumps(results | {"load": os.getloadavg(), "torch": torch.__version__}, indent=1))


if __name__ == "__main__":
    main()
