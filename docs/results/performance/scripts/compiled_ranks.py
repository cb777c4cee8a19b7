"""Compare compiled ranks, one compiled process and one eager process after five updates in float64.

`PYTHONPATH=. GLOO_SOCKET_IFNAME=lo python docs/results/performance/scripts/compiled_ranks.py [case ...]` in a
checkout prints a line of JSON for each case of `tests/workflows/divided.py`. The deviation of a metric is the
difference divided by its magnitude (at least 1). For all other values it is the norm of the difference
divided by the norm.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from reverie.utils.ranks import Ranks
from reverie.workflows.world_models import CompiledDreamer, DreamerWorkflow
from tests.workflows import divided
from tests.workflows.divided import Found

CHECKOUT = Path(__file__).parents[4]
# The first matching prefix of a value's name determines its kind.
KINDS = {
    "metric/": "metrics",
    "gradient/": "gradients",
    "after/optimizers": "moments",
    "after/": "parameters",
}
as_written = divided.learn


def everything(ranks: Ranks) -> dict[str, Found]:
    """Return the learned values of this rank for the case, in the form of `tests.runs.forked_ranks`."""
    case = os.environ["CASE"]
    if os.environ["IS_COMPILED"] == "1":
        divided.learn = learn_compiled
    if case in divided.CASES:
        return {case: divided.of_golden_case(case, ranks)}
    if case in divided.OBJECTIVES:
        return {case: divided.of_objective(divided.OBJECTIVES[case], ranks)}
    return {case: divided.of_warm_up(ranks)}


def learn_compiled(workflow: DreamerWorkflow, batches: Sequence, phase: str = "update") -> Found:
    """Learn with the compiled version of a workflow."""
    twin = CompiledDreamer(workflow.env, workflow.config, workflow.device, ranks=workflow.ranks)
    twin.load_state_dict(workflow.state_dict())
    return as_written(twin, batches, phase)


def found_by(case: str, is_compiled: bool, *sizes: int) -> dict[int, list[Found]]:
    """Return the results of each rank for each number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.runs.forked_ranks", folder, Path(__file__).stem, "float64"]
        path = f"{Path(__file__).parent}{os.pathsep}{CHECKOUT}"
        environment = {"PYTHONPATH": path, "CASE": case, "IS_COMPILED": str(int(is_compiled))}
        subprocess.run([*command, *map(str, sizes)], check=True, cwd=CHECKOUT, env=os.environ | environment)
        names = {n: [f"{folder}/{n}_{rank}.pt" for rank in range(n)] for n in sizes}
        return {n: [torch.load(path, weights_only=True)[case] for path in names[n]] for n in sizes}


def apart(found: list[Found], expected: Found) -> dict[str, float]:
    """Return the largest deviation among the ranks for each kind of value."""
    worst: dict[str, float] = {}
    for name, value in expected.items():
        kind = next((kind for prefix, kind in KINDS.items() if name.startswith(prefix)), None)
        # `advantage_std` is the mean of the ranks' local values, by design.
        if kind is None or "advantage_std" in name:
            continue
        norm = float(value.double().norm())
        scale = max(1.0, norm) if kind == "metrics" else norm or 1.0
        differences = [float((rank[name].double() - value.double()).norm()) for rank in found]
        worst[kind] = max(worst.get(kind, 0.0), max(differences) / scale)
    return worst


def main() -> None:
    """Print a line for each case."""
    for case in sys.argv[1:] or divided.LEARNED:
        [written] = found_by(case, False, 1)[1]
        compiled = found_by(case, True, 1, 2, 4)
        line = {"case": case, "compiled against written, 1 process": apart(compiled[1], written)}
        for ranks in (2, 4):
            line[f"{ranks} ranks against 1 process, compiled"] = apart(compiled[ranks], compiled[1][0])
            line[f"{ranks} ranks, compiled, against 1 process as written"] = apart(compiled[ranks], written)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
