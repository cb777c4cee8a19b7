"""Results of processes that train together, for comparison in tests."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from .fixtures import made_once

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
FoundBySize = dict[int, list[Any]]


def found_by_ranks(folders: pytest.TempPathFactory, module: str, precision: str, *sizes: int) -> FoundBySize:
    """Return the results of a test module's `everything` on each rank, by number of ranks.

    With `float64`, all requests for float32 give float64, so that rounding does not hide differences. The
    processes run once per test session.
    """

    def run(folder: Path) -> None:
        folder.mkdir(parents=True)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK}
        command = [sys.executable, "-m", "tests.runs.forked_ranks", str(folder), module, precision]
        ended = subprocess.run([*command, *map(str, sizes)], env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr

    folder = made_once(folders, module, run)
    return {size: [torch.load(folder / f"{size}_{index}.pt") for index in range(size)] for size in sizes}
