"""Read, summarize, compare and judge CUDA memory snapshots from untrusted files."""
