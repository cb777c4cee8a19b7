"""Bytes and times of compressed replay: `python scripts/compression.py out=<file>`."""

import sys
from pathlib import Path

from reverie.commands.entry import load

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # it is no part of the package
    load("benchmarks.compression")()
