"""Watch a third-party program of this folder, without and with its leaks of `injections.py`.

    python benchmarks/watched/third_party.py <folder> <program> [--clean 600] [--jobs 4]

`<folder>/leaks.jsonl` receives one JSON object per leak. With `--clean`, `<folder>/clean.jsonl` receives one
for the clean program after this number of seconds. Finished rows are skipped. The program is patched by text
and runs under `heapwatch <program>.py`, in a process that shares the program's imports (`preloaded.py`).

The first line of the first leak report is judged: the name of the owner, the line that grows, and the
pattern. `late_seconds` is the time of the report, minus the time at which sample 56 was due after the first
step. The run stops after a correct report, or `PATIENCE` seconds after the sample was due.

Run this with a Python in which the program's packages are installed.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from held_out import HELD_OUT
from held_out_again import HELD_OUT_AGAIN
from injections import INJECTIONS, Injection
from table import read_json

HERE = Path(__file__).resolve().parent
DUE_SECONDS = 55 * 0.5
PATIENCE = 150.0
_REPORT = re.compile(r"^heapwatch: memory: (leak|growth) .*\n((?:  .*\n)*)", re.MULTILINE)
# The clock of the watch makes two steps per second until the first optimizer step.
_CLOCK_STEPS_A_SECOND = 2.2


class Program(NamedTuple):
    """A program of this folder."""

    packages: tuple[str, ...]
    steps: int = 1_000_000
    """More steps than the longest run makes."""
    at: str = ""
    """Function that is called at each step, for a program without an optimizer."""


PROGRAMS = {
    "sb3_ppo": Program(("stable-baselines3", "gymnasium")),
    "sb3_dqn": Program(("stable-baselines3", "gymnasium"), 200_000),
    "torchrl_replay": Program(("torchrl", "tensordict", "gymnasium"), 100_000),
    "lightning_fit": Program(("lightning",)),
    "hf_trainer": Program(("transformers", "accelerate")),
    "torchmetrics_loader": Program(("torchmetrics",)),
    "accelerate_loop": Program(("accelerate",)),
    "peft_lora": Program(("peft", "transformers")),
    "diffusers_unet": Program(("diffusers",)),
    "fastapi_server": Program(("fastapi", "uvicorn", "httpx"), at="starlette.requests:Request.json"),
    "aiohttp_server": Program(("aiohttp",), at="aiohttp.web:json_response"),
    "sklearn_stream": Program(
        ("scikit-learn", "pandas"), at="sklearn.linear_model:SGDClassifier.partial_fit"
    ),
    # The held-out programs
    "flask_notes": Program(("flask", "werkzeug"), at="flask:Flask.full_dispatch_request"),
    "websocket_chat": Program(("websockets",), at="websockets.asyncio.connection:Connection.send"),
    "sqlalchemy_orders": Program(("sqlalchemy",), at="sqlalchemy.orm:Session.commit"),
    "polars_events": Program(("polars",), at="polars:LazyFrame.collect"),
    "torch_ema": Program(()),
    "geometric_gcn": Program(("torch_geometric",)),
    "ignite_autoencoder": Program(("pytorch-ignite",)),
    "jax_regression": Program(("jax", "optax"), at="optax:apply_updates"),
    # Held out from the fixes that these led to
    "gpytorch_online": Program(("gpytorch",)),
    "skorch_partial": Program(("skorch",)),
    "optuna_search": Program(("optuna",), at="optuna.study:Study.ask"),
    "pyro_svi": Program(("pyro-ppl",), at="pyro.infer:SVI.step"),
    "django_shop": Program(("django",), at="django.core.handlers.base:BaseHandler.get_response"),
    "tornado_chat": Program(("tornado",), at="tornado.web:RequestHandler.finish"),
    "dask_windows": Program(("dask",), at="dask.base:DaskMethodsMixin.compute"),
    "pandas_sensor": Program(("pandas",), at="pandas.core.window.rolling:Rolling.mean"),
}


def patched(text: str, injection: Injection) -> str:
    """Return a program with a leak. The new lines are indented like the lines that they replace."""
    lines = text.splitlines()
    for old, new in injection.lines.items():
        [place] = [number for number, line in enumerate(lines) if line.strip() == old]
        indent = lines[place][: -len(old)]
        lines[place : place + 1] = textwrap.indent(new.strip("\n"), indent).splitlines()
    return "\n".join(lines) + "\n"


def first_step_seconds(report: dict[str, Any], at: str) -> float | None:
    """Return the seconds from the start of the watch to the first counted step, or `None` before it."""
    rows = report["series"]
    if at:
        return rows[0]["seconds"] if rows else None
    if report["unit"] != "steps":
        return None
    for row, later in pairwise(rows):
        if later["step"] - row["step"] > _CLOCK_STEPS_A_SECOND * (later["seconds"] - row["seconds"]) + 1:
            return row["seconds"]
    # The program makes no more steps than the clock would.
    return rows[0]["seconds"]


def reported(log: Path) -> list[tuple[str, str]]:
    """Return the verdict and the first message of each report that the watch has printed."""
    found = _REPORT.findall(log.read_text()) if log.exists() else []
    return [(kind, (lines.splitlines() or [""])[0].strip()) for kind, lines in found]


def judged(message: str, injection: Injection, place: str) -> dict[str, bool]:
    """Return whether the owner, the line and the pattern of a message are correct."""
    name = re.split(r" \(| grows: | keeps ", message)[0]
    return {
        "owner": any(each in name for each in injection.owner),
        "file": re.search(rf"\b{re.escape(place)}\b", message) is not None,
        "pattern": f" {injection.effect}" in message,
    }


def _has_stopped(report: Path) -> bool:
    """Return whether the program takes no more samples, such as after an error in one of its threads."""
    has_started = report.exists() and read_json(report)["samples"] > 0
    return has_started and time.time() - report.stat().st_mtime > PATIENCE


class Runner:
    """Runs a program under the watch, in forked processes that share its imports."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder, self._program = name, folder, PROGRAMS[name]
        self._lock = threading.Lock()
        self._parent = subprocess.Popen(
            [sys.executable, str(HERE / "preloaded.py"), str(HERE / f"{name}.py")],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.at = self._program.at

    def run(self, title: str, text: str, is_finished: Callable[[Path], bool]) -> tuple[Path, dict[str, Any]]:
        """Run the program to its end or until `is_finished(folder)`. Return its folder and its report."""
        folder = self._folder / f"{self.name}_{title.replace(' ', '_')}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / f"{self.name}.py").write_text(text)
        at = ["--at", self.at] if self.at else []
        own = ["--report", str(folder), *at, f"{self.name}.py", "--steps", str(self._program.steps)]
        with self._lock:
            self._parent.stdin.write(json.dumps([str(folder), *own]) + "\n")
            self._parent.stdin.flush()
            process = int(self._parent.stdout.readline())
        with suppress(ProcessLookupError):
            while not is_finished(folder) and not _has_stopped(folder / "watch.json"):
                time.sleep(1.0)
                os.kill(process, 0)
            time.sleep(2.0)
            for each in (signal.SIGTERM, signal.SIGKILL):
                os.kill(process, each)
                time.sleep(10.0)
        report = read_json(folder / "watch.json")
        return folder, report or {"verdict": "no report", "unit": "", "series": [], "findings": []}

    def row(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of every row."""
        versions = {each: version(each) for each in self._program.packages}
        numbers = ("samples", "steps", "seconds", "own_seconds", "search_seconds")
        return {
            "program": self.name,
            "versions": versions,
            "verdict": report["verdict"],
            **{each: report.get(each) for each in numbers},
            "load": round(os.getloadavg()[1], 1),
        }


def leak_row(runner: Runner, injection: Injection) -> dict[str, Any]:
    """Run a program with a leak, and judge the first report of a leak."""
    text = patched((HERE / f"{runner.name}.py").read_text(), injection)
    [line] = [number for number, each in enumerate(text.splitlines(), 1) if each.endswith("# grows")]
    place = f"{runner.name}.py:{line}"

    def is_finished(folder: Path) -> bool:
        messages = [message for kind, message in reported(folder / "watched.log") if kind == "leak"]
        report = read_json(folder / "watch.json")
        if messages and all(judged(messages[0], injection, place).values()):
            # The file is written some seconds later.
            return report is not None and report["verdict"] == "leak"
        first = report and first_step_seconds(report, runner.at)
        return bool(report and first is not None and report["seconds"] > first + DUE_SECONDS + PATIENCE)

    folder, report = runner.run(injection.name, text, is_finished)
    found = reported(folder / "watched.log")
    leaks = [message for kind, message in found if kind == "leak"]
    # The report in the file may be some seconds old.
    first = first_step_seconds(report, runner.at)
    times = [each["seconds"] for each in report["findings"] if each["verdict"] == "leak"]
    late = round(min(times) - first - DUE_SECONDS, 1) if times and first is not None else None
    none = dict.fromkeys(("owner", "file", "pattern"), False)
    return {
        "name": injection.name,
        "expected": [*injection.owner, place, injection.effect],
        "right": judged(leaks[0], injection, place) if leaks else none,
        "late_seconds": late,
        "message": leaks[0] if leaks else None,
        "last_right": judged(leaks[-1], injection, place) if leaks else none,
        "last_message": leaks[-1] if leaks else None,
        "first_step_seconds": first,
        **runner.row(report),
    }


def clean_row(runner: Runner, seconds: float) -> dict[str, Any]:
    """Run a clean program, and list the alarms: all reports of leaks or growth."""

    def is_finished(folder: Path) -> bool:
        report = read_json(folder / "watch.json")
        return report is not None and report["seconds"] > seconds

    folder, report = runner.run("clean", (HERE / f"{runner.name}.py").read_text(), is_finished)
    found = [{key: each[key] for key in ("verdict", "resource", "messages")} for each in report["findings"]]
    alarms = [" ".join(each) for each in reported(folder / "watched.log")]
    return {"alarms": alarms, "findings": found, **runner.row(report)}


def main() -> None:
    """Run all rows that the folder does not have yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--clean", type=float, metavar="SECONDS", help="run the clean program for this time")
    parser.add_argument("--leaks", nargs="+", help="names of leaks (default: all of the program)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("clean.jsonl" if asked.clean else "leaks.jsonl")
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else [])
    there = {(line["program"], line.get("name")) for line in lines}
    runner = Runner(asked.program, folder)

    def add(injection: Injection | None) -> None:
        row = clean_row(runner, asked.clean) if injection is None else leak_row(runner, injection)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(*(row.get(key) for key in ("program", "name", "verdict", "right", "late_seconds", "alarms")))
        print("  ", row.get("message"), flush=True)

    every = (*INJECTIONS, *HELD_OUT, *HELD_OUT_AGAIN)
    own = [each for each in every if each.program == asked.program]
    leaks = [each for each in own if not asked.leaks or each.name in asked.leaks]
    with ThreadPoolExecutor(asked.jobs) as pool:
        todo = [None] if asked.clean else leaks
        left = [each for each in todo if (asked.program, each and each.name) not in there]
        for future in [pool.submit(add, each) for each in left]:
            future.result()


if __name__ == "__main__":
    main()
