"""Watch third-party programs, without and with each injected leak, and write a line for each.

    python benchmarks/watched/table.py <folder> [--programs sb3_dqn ...] [--leaks none dict ...]

`<folder>/table.jsonl` receives one JSON object per pair. Finished pairs are skipped, so the command resumes
an interrupted table. `none` is the clean program: the correct verdict is `flat` or `filling`. To measure the
overhead, the clean program runs with and without the watch. For a leak, the verdict is correct if it is
`leak` and a finding names the holder. The field `named_first` is true if the holder is named before all other
sources. A run with a leak is stopped 2 s after the leak is found.

Run this with a Python in which the programs' packages are installed. Set these environment variables: CLEANRL
is the folder of CleanRL's checkout, GYMNASIUM_029 a folder with gymnasium 0.29 for CleanRL, and WATCH_CPU the
number of the core to run on.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import leaks

HERE = Path(__file__).resolve().parent
EVENTS_A_SECOND = {"descriptors": 1.5, "threads": 1.5}
"""Events per second for some leaks. Others, such as graphs, have 8 events or 0.5 MB per second."""
OF_GRAPHS = ("losses", "optimizer", "state")
_LINGER_SECONDS = 2.0


@dataclass(frozen=True)
class Program:
    """A program, with its speed on part of a core."""

    package: str
    steps_a_second: float
    """Optimizer steps with backward passes, summed over all its optimizers."""
    frames_a_second: float
    """Environment steps, or 0 without an environment."""
    script: str = ""
    """Script in CleanRL's folder, or "" for a driver in this folder."""
    steps_of_one: float = 1.0
    """Value of `--steps` (or CleanRL's `--total-timesteps`) per optimizer step."""
    more: tuple[str, ...] = ()
    graph_kb: float = 8.0
    """Size of a loss's graph that remains after its backward pass."""


PROGRAMS = {
    "sb3_dqn": Program("stable_baselines3", 140, 140),
    "sb3_ppo": Program("stable_baselines3", 140, 900),
    "torchrl_replay": Program("torchrl", 60, 240),
    "sheeprl_ppo": Program("sheeprl", 95, 300),
    "sheeprl_dreamer": Program("sheeprl", 42, 14, steps_of_one=1 / 3, graph_kb=142.0),
    "cleanrl_dqn": Program(
        "cleanrl", 120, 480, "cleanrl/dqn.py", 4.0, ("--train-frequency", "4", "--learning-starts", "1000")
    ),
    "cleanrl_ppo": Program("cleanrl", 30, 900, "cleanrl/ppo.py", 32.0),
    "hf_trainer": Program("transformers", 55, 0, graph_kb=86.0),
    "lightning_fit": Program("lightning", 240, 0),
}


def command(name: str, leak: str, seconds: float) -> list[str]:
    """Return the arguments after `python`: the program, with its leak if it has one."""
    program = PROGRAMS[name]
    count = str(int(program.steps_a_second * seconds * program.steps_of_one))
    if program.script:
        script = Path(os.environ["CLEANRL"]) / program.script
        own = [str(script), "--no-cuda", "--total-timesteps", count, *program.more]
    else:
        own = [str(HERE / f"{name}.py"), "--steps", count]
    if leak == "none":
        return own
    speed = program.frames_a_second if leak == "frames" else program.steps_a_second
    often = 500.0 / program.graph_kb if leak in OF_GRAPHS else EVENTS_A_SECOND.get(leak, 8.0)
    every = max(1, round(speed / often))
    # Otherwise the leak would always hit the same one of three alternating losses.
    every += every % 3 == 0
    return [str(HERE / "leaky.py"), f"{leak}:{every}", *own]


def environment(name: str) -> dict[str, str]:
    """Return the environment of a program: one thread, and CleanRL's own modules for CleanRL."""
    values = os.environ | {"OMP_NUM_THREADS": "1"}
    if PROGRAMS[name].script:
        folders = [
            os.environ.get("GYMNASIUM_029", ""),
            os.environ["CLEANRL"],
            os.environ.get("PYTHONPATH", ""),
        ]
        values["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    return values


def named(report: dict[str, Any], leak: str, first: bool = False) -> bool:
    """Return whether a finding includes this leak's holder (if `first`, before all other sources)."""
    found = [each for each in report["findings"] if each["verdict"] in ("leak", "growing")]
    texts = [text for each in found for text in (each["resource"], *each["sources"])]
    if first:
        texts = [
            text.partition(" -> ")[0] for each in found for text in (each["resource"], *each["sources"][:1])
        ]
    return any(part.lower() in text.lower() for part in leaks.EXPECTED[leak] for text in texts)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or `None` if the file does not exist."""
    return json.loads(path.read_text()) if path.exists() else None


def run(name: str, leak: str, seconds: float, folder: Path, watched: bool) -> dict[str, float]:
    """Run a program to its end or until its leak is found. Return its times and its exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    watch = ["-m", "heapwatch", "--report", str(folder)] if watched else []
    core = ["taskset", "-c", os.environ["WATCH_CPU"]] if "WATCH_CPU" in os.environ else []
    began, found_at = time.monotonic(), 0.0
    with (folder / ("watched.log" if watched else "plain.log")).open("w") as log:
        child = subprocess.Popen(
            [*core, sys.executable, *watch, *command(name, leak, seconds)],
            cwd=folder,
            env=environment(name),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        while (done := os.wait4(child.pid, os.WNOHANG))[0] == 0:
            time.sleep(0.5)
            report = read_json(folder / "watch.json") if leak != "none" and not found_at else None
            if report and report["verdict"] == "leak" and named(report, leak):
                found_at = time.monotonic()
            if found_at and time.monotonic() - found_at > _LINGER_SECONDS:
                os.kill(child.pid, signal.SIGTERM)
                found_at = math.inf
    usage = done[2]
    return {
        "rc": os.waitstatus_to_exitcode(done[1]),
        "wall_seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "most_rss_mb": round(usage.ru_maxrss / 1024, 1),
    }


def row(name: str, leak: str, seconds: float, folder: Path) -> dict[str, Any]:
    """Run one pair, and return its line in the table."""
    package = PROGRAMS[name].package
    fields: dict[str, Any] = {"program": name, "leak": leak}
    fields["version"] = f"{package} " + ("at a commit" if package == "cleanrl" else version(package))
    (folder / "watch.json").unlink(missing_ok=True)
    fields["watched"] = run(name, leak, seconds, folder, watched=True)
    report = read_json(folder / "watch.json") or {"verdict": "no report", "findings": []}
    findings = [each for each in report["findings"] if each["verdict"] in ("leak", "growing")]
    first = min(findings, key=lambda each: each["seconds"], default={})
    fields |= {"verdict": report["verdict"], "holders": findings}
    if leak == "none":
        fields["right"] = report["verdict"] in ("flat", "filling")
        fields["plain"] = run(name, leak, seconds, folder, watched=False)
        fields["overhead"] = round(fields["watched"]["cpu_seconds"] / fields["plain"]["cpu_seconds"] - 1, 4)
    else:
        fields["right"] = report["verdict"] == "leak" and named(report, leak)
        fields["named_first"] = named(report, leak, first=True)
    fields |= {"steps_until": first.get("step"), "seconds_until": first.get("seconds")}
    return fields | {key: report.get(key) for key in ("steps", "samples", "seconds", "own_seconds")}


def main() -> None:
    """Run all pairs of the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--leaks", nargs="+", choices=("none", *leaks.NAMES), default=["none", *leaks.NAMES])
    parser.add_argument("--seconds", type=float, default=120.0, help="of one run, on a part of a core")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "table.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    there = {(line["program"], line["leak"]) for line in map(json.loads, lines)}
    for leak in asked.leaks:
        for name in asked.programs:
            without = leak == "frames" and not PROGRAMS[name].frames_a_second
            if (name, leak) in there or without:
                continue
            line = row(name, leak, asked.seconds, folder / f"{name}_{leak}")
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(name, leak, line["verdict"], "right" if line["right"] else "WRONG", flush=True)


if __name__ == "__main__":
    main()
