"""Run six memory tools, and parse their reports into a common form."""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "program.py"

BEGIN = """
import sys
sys.path.insert(0, {folder!r})
import program
leak, steps = {leak!r}, {steps}
"""
TRACEMALLOC = """
import tracemalloc
trainer = program.Trainer()
tracemalloc.start(5)
for step in range(steps):
    trainer.update(leak, step)
for each in tracemalloc.take_snapshot().statistics("traceback"):
    print(";".join(f"{frame.filename}:{frame.lineno}" for frame in each.traceback), each.size)
"""
TEST = """
import pytest
trainer = program.Trainer()  # outlives the test: what a test alone holds is free at its end

@pytest.mark.limit_leaks("1 MB")
def test_updates():
    for step in range(steps):
        trainer.update(leak, step)
"""
TRUTH = """
import ctypes, os
class Info(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in "arena ordblks smblks hblks hblkhd a b uordblks c d".split()]
program.LIBC.mallinfo2.restype = Info
def state():
    info = program.LIBC.mallinfo2()
    return info.uordblks + info.hblkhd, len(os.listdir("/proc/self/fd"))
trainer = program.Trainer()
for step in range(steps):
    trainer.update(leak, step)
    if step == 99:
        before = state()
print(*((now - then) / (steps - 100) for now, then in zip(state(), before)))
"""
"""Prints the bytes allocated by malloc and the open files, per step."""


def profile(tool: str, program: list[str], out: Path) -> list[str]:
    """Return the command that runs a program, given as its file and arguments, under a profiler."""
    python, there = sys.executable, Path(sys.executable).parent
    return {
        "memray": [python, "-m", "memray", "run", "-q", "-f", "-o", str(out / "memray.bin"), *program],
        "filprofiler": [str(there / "fil-profile"), "--no-browser", "-o", str(out), "run", *program],
        "scalene": [
            *(str(there / "scalene"), "run", "-o", str(out / "scalene.json"), program[0], "---"),
            *program[1:],
        ],
    }[tool]


def command(tool: str, leak: str, steps: int, out: Path) -> list[str]:
    """Return the command that runs the program under a tool."""
    own = [str(PROGRAM), leak, str(steps)]
    if tool in ("memray", "filprofiler", "scalene"):
        return profile(tool, own, out)
    python = sys.executable
    begin = BEGIN.format(folder=str(HERE), leak=leak, steps=steps)
    test = out / "test_program.py"
    test.write_text(begin + TEST)
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--memray", "--stacks=60", str(test)]
    watch = [python, "-m", "heapwatch", "--report", str(out)]
    return {
        "alone": [python, *own],
        "alone_short": [python, *own],
        "truth": [python, "-c", begin + TRUTH],
        "tracemalloc": [python, "-c", begin + TRACEMALLOC],
        "pytest-memray": pytest,
        "reverie-watch": [*watch, *own],
        "reverie-watch_trace": [*watch, "--trace", *own],
    }[tool]


@dataclass
class Reading:
    """Contents of a report."""

    says_leak: bool
    """Whether the report claims a leak. A mere list of live memory does not."""
    retained: Counter[str]
    """Listed bytes by stack or line. A stack contains the `file:line` of each frame."""
    names: str = ""
    """Text that may include the holder's name, excluding source code, because that includes every name."""
    rate: str | None = None
    """Growth rate in the tool's own words."""
    lines: tuple[str, ...] = ()
    """Additional reported lines."""
    a_step: float | None = None
    """Bytes or files per step, if reported without a list."""


def _of_stacks(stacks: Iterable[tuple[str, float]]) -> Reading:
    retained: Counter[str] = Counter()
    for stack, size in stacks:
        retained[stack] += int(size)
    return Reading(False, retained, " ".join(re.findall(r"\((\w+)\)", " ".join(retained))))


def _of_text(path: Path) -> Reading:
    """Read lines that each contain a stack and its bytes."""
    lines = [line.rpartition(" ") for line in path.read_text(errors="replace").splitlines()]
    return _of_stacks((stack, float(size)) for stack, _, size in lines if re.fullmatch(r"-?[\d.]+", size))


def read_memray(out: Path, at_peak: bool) -> Reading:
    """Read a capture: live memory at the end, or at the peak."""
    from memray import FileReader

    stacks: list[tuple[str, float]] = []
    with FileReader(str(out / "memray.bin")) as capture:
        peak, leaked = capture.get_high_watermark_allocation_records, capture.get_leaked_allocation_records
        read = peak if at_peak else leaked
        for each in read(merge_threads=True):
            # This is the total for one stack. Most stacks belong to imports.
            if each.size > 4096:
                frames = (f"{file}:{line} ({name})" for name, file, line in each.stack_trace())
                stacks.append((";".join(frames), each.size))
    return _of_stacks(stacks)


def read_pytest(out: Path) -> Reading:
    """Read the section about leaks of a failed test."""
    text = (out / "output.txt").read_text(errors="replace")
    section = text.partition("List of leaked allocations:")[2].partition("MEMRAY REPORT")[0]
    units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    found = re.findall(r"- ([\d.]+)([KMG]?i?B) allocated here:\n((?:        \S.*\n)+)", section)
    # In this section, a frame is `function:file:line`.
    reading = _of_stacks((stack.replace("\n", ";"), float(size) * units[unit]) for size, unit, stack in found)
    reading.says_leak, reading.names = "at least one location leaked more" in text, section
    return reading


def read_scalene(out: Path) -> Reading:
    """Read growth by line, and the estimated leaks."""
    reading = Reading(False, Counter())
    for file, values in json.loads((out / "scalene.json").read_text())["files"].items():
        for line in values["lines"]:
            reading.retained[f"{file}:{line['lineno']}"] += int(line["n_growth_mb"] * 2**20)
        for line, leak in (values.get("leaks") or {}).items():
            reading.says_leak, reading.lines = True, (*reading.lines, f"{file}:{line}")
            reading.rate = f"{leak['velocity_mb_s']:.1f} MB/s"
    return reading


def read_reverie(out: Path) -> Reading:
    """Read the findings, and the lines added by --trace."""
    report = json.loads((out / "watch.json").read_text())
    leaks = [each for each in report["findings"] if each["verdict"] in ("leak", "growing")]
    names = " ".join(source for each in leaks for source in each["sources"])
    traced = tuple(report["newest_allocations"][:3])
    reading = Reading(report["verdict"] == "leak", Counter(), names, lines=traced)
    for each in leaks:
        if rate := re.match(r"\+([\d,.]+) (\S+) per 1,000 steps", each["growth"]):
            unit = 1e6 if rate[2] == "MB" else 1.0
            reading.rate, reading.a_step = rate[0], float(rate[1].replace(",", "")) * unit / 1000
    return reading


READERS: dict[str, tuple[str, Callable[[Path], Reading]]] = {
    "reverie-watch": ("reverie-watch", read_reverie),
    "reverie-watch --trace": ("reverie-watch_trace", read_reverie),
    "memray, at exit": ("memray", lambda out: read_memray(out, at_peak=False)),
    "memray, at the peak": ("memray", lambda out: read_memray(out, at_peak=True)),
    "tracemalloc": ("tracemalloc", lambda out: _of_text(out / "output.txt")),
    "pytest-memray": ("pytest-memray", read_pytest),
    "filprofiler": ("filprofiler", lambda out: _of_text(next(out.glob("*/peak-memory.prof")))),
    "scalene": ("scalene", read_scalene),
}
"""The tool to run and the reader of its report, for each table row."""
