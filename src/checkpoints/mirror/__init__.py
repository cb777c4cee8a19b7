"""A copy of a run's checkpoints on another machine's file system, kept while the run goes on."""
