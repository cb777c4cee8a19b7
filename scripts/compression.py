"""Measure the size and speed of a compressed replay: `python scripts/compression.py out=<file>`."""

import sys
from pathlib import Path

from reverie.commands.entry import load

if __name__ == "__main__":
    # This module is not part of the package.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    load("benchmarks.compression")()
