"""Find what grows in CUDA memory snapshots: `python scripts/analyze_memory_snapshot.py --snapshots-dir D`."""

import sys

from reverie.commands.entry import analyze_snapshots

if __name__ == "__main__":
    sys.exit(analyze_snapshots())
