"""`python -m benchmarks.pong_probe`."""

from benchmarks.pong_probe.command import main

main()
