"""Benchmark Reverie, its peers and the machine's limits: `scripts/benchmark.py bench.rows=update_size1m`."""

import sys
from pathlib import Path

from reverie.commands.entry import load

if __name__ == "__main__":
    # The suite is not part of the package.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    load("benchmarks.suite")()
