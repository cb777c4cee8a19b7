"""Time Reverie, its peers and the machine's limits: `scripts/benchmark.py bench.rows=update_size1m`."""

import sys
from pathlib import Path

from reverie.commands.entry import load

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the suite is no part of the package
    load("benchmarks.suite")()
