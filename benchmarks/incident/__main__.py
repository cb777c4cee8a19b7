"""`python -m benchmarks.incident`."""

from benchmarks.incident.command import main

main()
