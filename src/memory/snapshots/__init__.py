"""CUDA memory snapshots: recorded in training, read without trust, summed, compared and judged."""

from .recorder import SnapshotRecorder as SnapshotRecorder
