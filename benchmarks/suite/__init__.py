"""The benchmark suite: the cost of updates, policy steps, replay and runs, compared with peers and limits."""

from benchmarks.suite.command import main as main
