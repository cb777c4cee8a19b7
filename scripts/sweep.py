"""Run a sweep on Ray: `python scripts/sweep.py experiment=dreamer_catch seed=1,2 sweep.out=sweeps/catch`."""

import sys
from pathlib import Path

from reverie.commands.entry import load

if __name__ == "__main__":
    # This module is not part of the package.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    load("benchmarks.sweep")()
