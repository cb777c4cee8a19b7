"""Run program.py under six memory tools, and measure how much each report reveals about the leak.

    python benchmarks/watched/tools/compare.py run <folder> [--core 1] [--tools memray scalene ...]
    python benchmarks/watched/tools/compare.py judge <folder> <lines.jsonl> <table.md>

Run it with a Python that has the tools and Reverie installed. `run` writes each tool's output to
`<folder>/<tool>-<leak>`, one run after another. Finished pairs are skipped, so an interrupted comparison
continues. `judge` reads this folder. `none` is the program without a leak.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from adapters import PROGRAM, READERS, Reading, command

LEAKS = {
    "graph": ("self.history.append", "history"),
    "view": ("self.window.append", "window"),
    "tensors": ("self.by_step[step]", "by_step"),
    "native": ("LIBC.strdup(", None),
    "files": ("os.open", None),
}
"""The beginning of the leaking line, and the leak's holder if it has one."""

TOOLS = ("truth", "alone", "alone_short", "reverie-watch", "memray", "tracemalloc", "pytest-memray")
TOOLS += ("filprofiler", "reverie-watch_trace", "scalene")
STEPS = {"alone": 15_000, "reverie-watch": 15_000, "reverie-watch_trace": 15_000, "truth": 500}
SHORT = 1000
"""Number of steps for all other tools. A list of allocations shows a leak immediately."""
MOST_SECONDS = 240.0


def run(tool: str, leak: str, folder: Path, core: int) -> None:
    """Run one pair, and write its outcome."""
    out, steps = folder / f"{tool}-{leak}", STEPS.get(tool, SHORT)
    if (out / "run.json").exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    line = ["taskset", "-c", str(core), *command(tool, leak, steps, out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "BROWSER": "true"}
    # Do not count the time during which the processes are suspended.
    seconds, is_late = 0.0, False
    with (out / "output.txt").open("w") as output:
        child = subprocess.Popen(
            line, stdout=output, stderr=output, env=environment, cwd=out, start_new_session=True
        )
        while (done := os.wait4(child.pid, os.WNOHANG))[0] == 0:
            time.sleep(0.1)
            seconds += 0.1
            if seconds > MOST_SECONDS and not is_late:
                is_late = True
                # scalene runs the program in a child process.
                os.killpg(child.pid, signal.SIGKILL)
    went = {
        "steps": steps,
        "exit_code": os.waitstatus_to_exitcode(done[1]),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(done[2].ru_utime + done[2].ru_stime, 2),
        "is_late": is_late,
    }
    (out / "run.json").write_text(json.dumps(went))
    print(tool, leak, went, flush=True)


def read(folder: Path, name: str, leak: str) -> tuple[dict[str, Any], Reading | None]:
    """Return a run's outcome and its parsed report.

    Without a report, the outcome includes the reason, and the report is `None`.
    """
    tool, reader = READERS[name]
    out = folder / f"{tool}-{leak}"
    if not (out / "run.json").exists():
        return {"reason": "not run"}, None
    went = json.loads((out / "run.json").read_text())
    if went["is_late"]:
        return went | {"reason": f"not done after {MOST_SECONDS:.0f} s"}, None
    try:
        return went | {"reason": None}, reader(out)
    except (OSError, StopIteration):
        return went | {"reason": f"no report, exit code {went['exit_code']}"}, None


def judge_pair(folder: Path, name: str, leak: str) -> dict[str, Any]:
    """Return the line of one pair."""
    went, reading = read(folder, name, leak)
    line = {"tool": name, "leak": leak, **went}
    if reading is None:
        return line
    line |= {"says_leak": reading.says_leak, "rate": reading.rate}
    if leak == "none":
        return line
    control = read(folder, name, "none")[1]
    start, holder = LEAKS[leak]
    code = PROGRAM.read_text().splitlines()
    at = re.compile(rf"program\.py:{[each.strip().startswith(start) for each in code].index(True) + 1}\b")
    first = (*reading.lines, *(stack for stack, _ in reading.retained.most_common(3)))
    a_step = (folder / f"truth-{leak}" / "output.txt").read_text().split()[leak == "files"]
    attributed = (reading.a_step or 0.0) * went["steps"]
    # Lists of allocations do not count files.
    if leak != "files":
        attributed += sum(size for stack, size in reading.retained.items() if at.search(stack))
    return line | {
        "verdict": reading.says_leak and control is not None and not control.says_leak,
        "names_line": any(at.search(each) for each in first),
        "names_holder": holder is not None and bool(re.search(rf"\b{holder}\b", reading.names)),
        "unit": "files" if leak == "files" else "bytes",
        "attributed": round(attributed),
        "truly_leaked": round(float(a_step) * went["steps"]),
        "attributed_share": round(attributed / (float(a_step) * went["steps"]), 3),
    }


def cell(line: dict[str, Any]) -> str:
    """Return the table cell of one pair."""
    if line["reason"]:
        return line["reason"]
    if line["leak"] == "none":
        return "reports a leak" if line["says_leak"] else "quiet"
    words = [word for word in ("verdict", "line", "holder") if line.get(f"names_{word}", line.get(word))]
    words += ["rate"] * bool(line["rate"])
    share = line["attributed_share"]
    return ", ".join([*words, f"{share:.0%}"] if share >= 0.005 else words) or "-"


def judge(folder: Path, lines: Path, table: Path) -> None:
    """Write a JSON line for each tool and leak, and their table."""
    head = ["Tool", "Steps", "no leak", *LEAKS, "CPU time"]
    rows, found = [head, ["---"] * len(head)], []
    for name, (tool, _) in READERS.items():
        pairs = [judge_pair(folder, name, leak) for leak in ("none", *LEAKS)]
        found += pairs
        alone = "alone" if tool in STEPS else "alone_short"
        seconds = json.loads((folder / f"{alone}-none" / "run.json").read_text())["cpu_seconds"]
        ratios = [f"{each['cpu_seconds'] / seconds:.1f}" for each in pairs if each["reason"] is None]
        ends = f"{ratios[0]} to {max(ratios, key=float)}" if ratios else "?"
        rows.append([name, f"{STEPS.get(tool, SHORT):,}", *map(cell, pairs), ends])
    lines.write_text("".join(json.dumps(each) + "\n" for each in found))
    packages = ("reverie", "memray", "pytest-memray", "filprofiler", "scalene", "torch", "numpy")
    table.write_text(
        TEXT.format(
            versions=", ".join(f"{name} {version(name)}" for name in packages),
            python=sys.version.split()[0],
            seconds=MOST_SECONDS,
            rows="\n".join("| " + " | ".join(row) + " |" for row in rows),
        )
    )


TEXT = """\
# Memory tools compared on five leaks

`benchmarks/watched/tools/program.py` trains with one of five leaks. A list of losses keeps graphs, a view of
one byte pins its array, or a dict keeps tensors, each in an attribute of a trainer that is a local variable
of `main`. The other two are memory lost by a C library, and files that stay open (one in ten steps).

    python benchmarks/watched/tools/compare.py run <folder>
    python benchmarks/watched/tools/compare.py judge <folder> tools.jsonl tools.md

{versions}, Python {python}. The tools ran one after another on one core, shared with other programs, and were
stopped after {seconds:.0f} s. A script computes every cell from the output of the tool. `tools.jsonl`
contains the numbers.

- **no leak**: the report on the program without a leak. In the other columns, "-" means that the tool finds
  no leak.
- **verdict**: the tool reports a leak, but not for the program without a leak.
- **line**: the leaking line is reported, or is in the stack of one of the three largest allocations.
- **holder**: the tool reports the attribute with the leaked objects. Native memory and files have no such
  attribute.
- **rate**: the tool reports the growth rate.
- **%**: the reported share of the true leak (measured by `mallinfo2` or open files).
- **CPU time**: relative to the program without a tool and without a leak. The first number is without a leak,
  and the second is the maximum over all columns.

{rows}

Strengths and failures, compared with reverie-watch:

- **memray** is better at reporting lines: it lists each allocation with its stack, including native ones,
  after 1,000 steps. Use its report at the peak, because objects in local variables of `main` are freed before
  exit.
- **tracemalloc** is part of Python. For tensors, it counts the object but not its data.
- **pytest-memray** is a better test gate: tests fail on leaks, including native ones (`--stacks=60`).
- **filprofiler** draws a better picture: a flame graph of all allocations at the peak.
- **Scalene** also reports CPU time per line. Two of its three runs stalled with 2 s of CPU time in 240 s.
- **reverie-watch** needs a minute to reach a verdict, while the others list live memory at any time. It
  reports lines only with `--trace`, and reports no stacks for native memory.
"""


def main() -> None:
    """Run the tools, or judge their output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "judge"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("lines", type=Path, nargs="?")
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--core", type=int, default=1)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    asked = parser.parse_args()
    if asked.what == "judge":
        judge(asked.folder, asked.lines, asked.table)
        return
    for tool in asked.tools:
        for leak in ("none",) if tool.startswith("alone") else ("none", *LEAKS):
            run(tool, leak, asked.folder.resolve(), asked.core)


if __name__ == "__main__":
    main()
