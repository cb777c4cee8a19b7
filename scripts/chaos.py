"""Kill a run, resume it, compare it with the unbroken one: `scripts/chaos.py experiment=dreamer_catch`."""

import sys
from pathlib import Path

from reverie.commands.entry import load

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # it is no part of the package
    load("benchmarks.chaos")()
