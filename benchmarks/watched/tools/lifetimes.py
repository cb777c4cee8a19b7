"""Run the programs of docs/leak_patterns.md without torch under memray's object lifetimes.

    python benchmarks/watched/tools/lifetimes.py > patterns_lifetimes.jsonl

Run it with Python 3.13.3 or later and with memray, NumPy and matplotlib. Each JSON line has the most frequent
types of the objects that a program creates in 200 steps and does not free.
"""

import json
import runpy
import sys
import tempfile
import textwrap
from collections import Counter
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

TESTS = Path(__file__).resolve().parents[3] / "packages" / "heapwatch" / "tests"
LEAKS = runpy.run_path(str(TESTS / "leaky_programs.py"))["LEAKS"]
NAMES = ("lru_cache on a method", "exceptions", "bound methods", "closures", "dict keyed by episode")
NAMES += ("unbounded deque", "views", "logging handlers", "figures", "memory maps")
STEPS = 200


def run(name: str) -> None:
    """Run one program, and print its line."""
    folder = tempfile.mkdtemp()
    source = textwrap.dedent(LEAKS[name].source)
    Path(folder, "program.py").write_text(source)
    sys.path.insert(0, folder)
    memray, program = import_module("memray"), import_module("program")
    program.step(0)
    with memray.Tracker(Path(folder, "memray.bin"), track_object_lifetimes=True) as tracker:
        for number in range(1, STEPS + 1):
            program.step(number)
    found = Counter(type(each).__name__ for each in tracker.get_surviving_objects())
    print(json.dumps({"pattern": name, "surviving": found.most_common(3)}), flush=True)


if __name__ == "__main__":
    for name in NAMES:
        child = get_context("spawn").Process(target=run, args=(name,))
        child.start()
        child.join()
