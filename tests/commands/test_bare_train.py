"""`reverie-train` without arguments lists the experiments without starting one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reverie.config.presets import experiment_lines

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "configs" / "experiment").glob("*.yaml"))


def bare_train(folder: Path, rank: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "train.py")]
    environment = os.environ | {"RANK": rank, "WORLD_SIZE": "2"}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_without_arguments_the_experiments_are_listed_once_and_nothing_starts(
    rank: str, tmp_path: Path
) -> None:
    ended = bare_train(tmp_path, rank)
    assert (ended.returncode, ended.stderr) == (0, "")
    listed = [line.split()[0] for line in ended.stdout.splitlines() if line.startswith("  ")]
    assert listed == (NAMES if rank == "0" else [])
    assert list(tmp_path.iterdir()) == []


def test_every_experiment_has_a_training_time() -> None:
    times = {line.split()[0]: line for line in experiment_lines()}
    assert sorted(times) == NAMES
    assert "10 minutes on one CPU core" in times["dreamer_catch"]
    assert "1.8 hours on one CPU core" in times["dreamer_ataripong"]
