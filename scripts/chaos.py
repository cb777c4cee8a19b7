"""Kill and resume a run, and compare it with an uninterrupted one: `scripts/chaos.py experiment=...`."""

import sys
from pathlib import Path

from reverie.commands.entry import load

if __name__ == "__main__":
    # This module is not part of the package.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    load("benchmarks.chaos")()
