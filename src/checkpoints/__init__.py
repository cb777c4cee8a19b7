"""Run folders, checkpoints and their copies on remote file systems."""
