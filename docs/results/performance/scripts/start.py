"""Compare the CPU seconds of short commands in two checkouts, in turn.

    python start.py <name>=<checkout> <name>=<checkout> [rounds=5] [out=start.json]

Each checkout has its own .venv. Every process uses one thread. The seconds include child processes.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

LOAD = "import torch, reverie; reverie.load('pretrained:catch')"
COMMANDS = {
    "reverie-train --help": "{bin}/reverie-train --help",
    "import torch": '{bin}/python -c "import torch"',
    "import torch and load pretrained:catch": f'{{bin}}/python -c "{LOAD}"',
    "Catch, 300 steps": "{bin}/reverie-train experiment=dreamer_catch device=cpu compile=none "
    "training.total_timesteps=300 run_dir={folder}/run",
}


def cpu_seconds(command: str, checkout: str) -> float:
    """Return the user and system seconds of a command and its children."""
    with tempfile.TemporaryDirectory() as folder:
        filled = command.format(bin=f"{checkout}/.venv/bin", folder=folder)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            filled,
            shell=True,
            cwd=checkout,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert process.stderr
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{filled}\n{errors.decode()}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Compare two checkouts."""
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    rounds, out = int(given.pop("rounds", "5")), given.pop("out", None)
    found: dict[str, dict[str, list[float]]] = {name: {each: [] for each in given} for name in COMMANDS}
    for name, command in COMMANDS.items():
        # The first call fills the file caches.
        for number in range(rounds + 1):
            for each, checkout in given.items():
                seconds = round(cpu_seconds(command, checkout), 3)
                if number:
                    found[name][each].append(seconds)
        print(name, {each: statistics.median(values) for each, values in found[name].items()}, flush=True)
    if out:
        with open(out, "w") as file:
            json.dump(found, file, indent=1)
            file.write("\n")


main()
