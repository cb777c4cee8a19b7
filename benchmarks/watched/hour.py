"""Run a program without a leak for an hour, with and without heapwatch at the same time. Print JSON.

    python -m benchmarks.watched.hour <folder> [seconds]

The folder receives heapwatch's report, its output, and `memory.csv`: steps, CPU seconds and private memory of
both programs every ten seconds. `steps_ratio` compares the steps of both programs in the same wall time.
"""

import csv
import json
import statistics
import sys
import time
from pathlib import Path

import psutil
import torch
from torch import nn

SECONDS_BETWEEN_ROWS = 10.0
PAUSE_SECONDS = 0.01
FIELDS: tuple[str, ...] = ("seconds", "name", "steps", "cpu_seconds", "private_mb")


def train(counter: Path, seconds: float) -> None:
    """Train a small network with a pause after each step, and write the number of steps once per second."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters())
    end, due, steps = time.monotonic() + seconds, 0.0, 0
    while (now := time.monotonic()) < end:
        loss = model(torch.randn(128, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if now >= due:
            due = now + 1.0
            counter.write_text(str(steps))
        time.sleep(PAUSE_SECONDS)


def main(folder: Path, seconds: float) -> None:
    """Run both programs, record them, and print the comparison."""
    folder.mkdir(parents=True)
    starts = {
        "plain": [sys.executable],
        "watched": [sys.executable, "-m", "heapwatch", "--report", str(folder / "watch")],
    }
    counters = {name: folder / f"{name}.steps" for name in starts}
    log = (folder / "watched.log").open("w")
    programs = {
        name: psutil.Popen([*start, __file__, "--train", str(counters[name]), str(seconds)], stderr=log)
        for name, start in starts.items()
    }
    rows: list[dict[str, float | str]] = []
    began = time.monotonic()
    while all(program.poll() is None for program in programs.values()):
        time.sleep(SECONDS_BETWEEN_ROWS)
        for name, program in programs.items():
            if counters[name].exists() and (text := counters[name].read_text()):
                try:
                    times, memory = program.cpu_times(), program.memory_full_info()
                except psutil.Error:
                    continue
                # The memory of a process that has just ended is zero.
                if not memory.uss:
                    continue
                now = round(time.monotonic() - began, 1)
                cpu = round(times.user + times.system, 2)
                values = (now, name, int(text), cpu, round(memory.uss / 1e6, 2))
                rows.append(dict(zip(FIELDS, values, strict=True)))
    codes = [program.wait() for program in programs.values()]
    with (folder / "memory.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(json.dumps({"exit_codes": codes, **summary(rows)}, indent=1))


def summary(rows: list[dict[str, float | str]]) -> dict[str, float | list[float]]:
    """Return the ratio of steps, the extra CPU time, and the memory of each sixth of the run."""
    own = {name: [row for row in rows if row["name"] == name] for name in ("plain", "watched")}
    last = {name: of[-1] for name, of in own.items()}
    seconds = float(last["plain"]["seconds"])
    found: dict[str, float | list[float]] = {
        "seconds": seconds,
        "steps_ratio": round(float(last["watched"]["steps"]) / float(last["plain"]["steps"]), 4),
        "extra_cpu_share": round(
            (float(last["watched"]["cpu_seconds"]) - float(last["plain"]["cpu_seconds"])) / seconds, 5
        ),
    }
    for name, of in own.items():
        parts = [of[len(of) * part // 6 : len(of) * (part + 1) // 6] for part in range(6)]
        found[f"{name}_private_mb"] = [
            statistics.median(float(row["private_mb"]) for row in part) for part in parts
        ]
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(Path(sys.argv[2]), float(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 3600.0)
