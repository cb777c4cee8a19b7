"""Run the programs of docs/leak_patterns.md under other memory tools, and write what each tool shows.

    python benchmarks/watched/tools/patterns.py <folder> docs/results/memory/watched/patterns.jsonl

Run it with a Python that has memray, filprofiler, scalene, objgraph and Reverie installed. Each JSON line has
the largest entry of the tool's report: its size, and the innermost line of the program in its stack. Finished
pairs are skipped.
"""

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path

from adapters import READERS, profile

ROOT = Path(__file__).resolve().parents[3]
TESTS = ROOT / "packages" / "heapwatch" / "tests"
LEAKS = runpy.run_path(str(TESTS / "leaky_programs.py"))["LEAKS"]

NAMES = (
    *("losses with graph", "undetached state", "hooks", "lru_cache of tensors", "lru_cache on a method"),
    *("exceptions", "bound methods", "closures", "dict keyed by episode", "unbounded deque", "views"),
    *("logging handlers", "figures", "TensorBoard writers", "memory maps", "pytorch_4661"),
)
# Each step opens a file or makes a figure.
FEW = ("figures", "TensorBoard writers", "memory maps")
STEPS, FEWER_STEPS, MOST_SECONDS = 600, 200, 40
MAIN = """
import sys
import program
for number in range(int(sys.argv[1])):
    program.step(number)
"""
TRACEMALLOC = """
import sys, tracemalloc
import program
program.step(0)
tracemalloc.start(25)
for number in range(int(sys.argv[1])):
    program.step(number)
for each in tracemalloc.take_snapshot().statistics("traceback")[:3]:
    print(";".join(f"{frame.filename}:{frame.lineno}" for frame in each.traceback), each.size)
"""
OBJGRAPH = """
import gc, json, sys
import objgraph
import program
for number in range(8):
    program.step(number)
objgraph.growth()
for number in range(8, int(sys.argv[1])):
    program.step(number)
growth = objgraph.growth(limit=3)
def chain():
    # A global list of the objects would itself be the shortest chain.
    found = objgraph.by_type(growth[0][0])[-1]
    path = objgraph.find_backref_chain(found, objgraph.is_proper_module)
    return [getattr(path[0], "__name__", ""), *(type(each).__name__ for each in path[1:])]
print(json.dumps({"growth": growth, "chain": chain() if growth else []}))
"""
CYCLES = """
import gc, json, sys
import torch
from torch.utils.viz import _cycles
import program
seen = []
def observe(garbage):
    # Without a GPU, cycles with any tensor count. The module itself reports only CUDA tensors.
    seen.extend(type(each).__name__ for each in garbage if isinstance(each, torch.Tensor))
_cycles.observe_garbage(observe)
for number in range(int(sys.argv[1])):
    program.step(number)
gc.collect()
print(json.dumps({"tensors_in_cycles": len(seen)}))
"""
TOOLS = ("memray", "tracemalloc", "objgraph", "torch.utils.viz._cycles", "filprofiler", "scalene")
OWN = {"tracemalloc": TRACEMALLOC, "objgraph": OBJGRAPH, "torch.utils.viz._cycles": CYCLES}
PACKAGES = ("memray", "filprofiler", "scalene", "objgraph")


def source_of(name: str) -> str:
    """Return the text of a program of the tests."""
    if name in LEAKS:
        return textwrap.dedent(LEAKS[name].source)
    return (TESTS / "reports" / f"{name}.py").read_text()


def result(tool: str, name: str, folder: Path) -> dict[str, object]:
    """Run one program under one tool, and return the largest entry of its report."""
    folder.mkdir(parents=True, exist_ok=True)
    source, steps = source_of(name), FEWER_STEPS if name in FEW else STEPS
    (folder / "program.py").write_text(source)
    (folder / "main.py").write_text(MAIN)
    (folder / "own.py").write_text(OWN.get(tool, ""))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "BROWSER": "true", "MPLBACKEND": "agg"}
    found: dict[str, object] = {"tool": tool, "pattern": name, "steps": steps}
    program = ["own.py" if tool in OWN else "main.py", str(steps)]
    command = [sys.executable, *program] if tool in OWN else profile(tool, program, folder)
    try:
        with (folder / "output.txt").open("w") as output, (folder / "errors.txt").open("w") as errors:
            done = subprocess.run(
                command,
                cwd=folder,
                stdout=output,
                stderr=errors,
                env=environment,
                timeout=MOST_SECONDS,
            )
    except subprocess.TimeoutExpired:
        return found | {"reason": f"not done after {MOST_SECONDS} s"}
    try:
        if tool in ("objgraph", "torch.utils.viz._cycles"):
            return found | json.loads((folder / "output.txt").read_text().splitlines()[-1])
        _, read = READERS["memray, at the peak" if tool == "memray" else tool]
        reading = read(folder)
    except (OSError, StopIteration, IndexError, ValueError) as error:
        return found | {"reason": f"no report ({type(error).__name__}), exit code {done.returncode}"}
    of_program = [
        (stack, size) for stack, size in reading.retained.most_common() if size > 0 and "program.py:" in stack
    ]
    if not of_program:
        return found | {"line": None, "mb": 0.0}
    stack, size = of_program[0]
    lines = [*map(int, re.findall(r"program\.py:(\d+)", stack))]
    # Stacks of tracemalloc and fil begin with the outermost frame, and memray's with the innermost.
    number = lines[0] if tool == "memray" else lines[-1]
    code = source.splitlines()[number - 1].partition("  #")[0].strip()
    return found | {"line": number, "code": code, "mb": round(size / 1e6, 1)}


def main() -> None:
    """Run all pairs that are not in the output yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--patterns", nargs="+", choices=NAMES, default=NAMES)
    asked = parser.parse_args()
    old = asked.output.read_text().splitlines() if asked.output.exists() else []
    finished = {(each["tool"], each["pattern"]) for each in map(json.loads, old)}
    for tool in asked.tools:
        used = version(tool) if tool in PACKAGES else ""
        for name in asked.patterns:
            if (tool, name) not in finished:
                found = result(tool, name, asked.folder.resolve() / f"{tool}-{name}".replace(" ", "_"))
                with asked.output.open("a") as output:
                    output.write(json.dumps(found | {"version": used}) + "\n")


if __name__ == "__main__":
    main()
