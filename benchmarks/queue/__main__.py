"""`python -m benchmarks.queue`.

This folder must not contain an `__init__.py`, because that would hide the standard library's `queue` from
scripts started as `python benchmarks/<name>.py`.
"""

from benchmarks.queue.command import main

main()
