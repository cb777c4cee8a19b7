"""The benchmark suite: what an update, a policy step, the replay and a run cost, beside peers and limits."""

from benchmarks.suite.command import main as main
