"""`python -m benchmarks.queue`.

This folder must not have an `__init__.py`: it would hide the standard library's `queue` from scripts that are
started as `python benchmarks/<name>.py`.
"""

from benchmarks.queue.command import main

main()
