"""Find growth in CUDA memory snapshots: `python scripts/analyze_memory_snapshot.py --snapshots-dir D`."""

import sys

from heapwatch.snapshots.command import main

if __name__ == "__main__":
    sys.exit(main())
