"""CUDA memory snapshots: read without trust, summed, compared and judged."""
