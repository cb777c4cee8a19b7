"""Find what grows in CUDA memory snapshots: `python scripts/analyze_memory_snapshot.py --snapshots-dir D`."""

import sys

from reverie.utils.memory.snapshots.cli import main

if __name__ == "__main__":
    sys.exit(main())
