"""Run the programs of docs/leak_patterns.md without torch under memray's object lifetimes.

    PYTHONPATH=packages/heapwatch/tests python benchmarks/watched/tools/lifetimes.py > patterns_lifetimes.jsonl

Run it with Python 3.13.3 or later and with memray, NumPy and matplotlib. Each JSON line has the most frequent
type and line of the objects that a program creates in 200 steps and does not free.
"""

import json
import sys
import tempfile
import textwrap
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

import memray
from leaky_programs import LEAKS

NAMES = ("lru_cache on a method", "exceptions", "bound methods", "closures", "dict keyed by episode")
NAMES += ("unbounded deque", "views", "logging handlers", "figures", "memory maps")
STEPS = 200


def run(name: str) -> None:
    """Run one program, and print its line."""
    folder = tempfile.mkdtemp()
    source = textwrap.dedent(LEAKS[name].source)
    Path(folder, "program.py").write_text(source)
    sys.path.insert(0, folder)
    import program

    program.step(0)
    with memray.Tracker(Path(folder, "memray.bin"), track_object_lifetimes=True) as tracker:
        for number in range(1, STEPS + 1):
            program.step(number)
    found: Counter[tuple[str, int]] = Counter()
    for each in tracker.get_surviving_objects():
        stack = memray.get_stack_trace(each) if hasattr(memray, "get_stack_trace") else []
        line = next((line for _, file, line in stack if file.endswith("program.py")), 0)
        found[type(each).__name__, line] += 1
    (kind, number), count = found.most_common(1)[0]
    code = source.splitlines()[number - 1].partition("  #")[0].strip() if number else ""
    print(
        json.dumps({"pattern": name, "type": kind, "objects": count, "line": number, "code": code}),
        flush=True,
    )


if __name__ == "__main__":
    for name in NAMES:
        child = get_context("spawn").Process(target=run, args=(name,))
        child.start()
        child.join()
