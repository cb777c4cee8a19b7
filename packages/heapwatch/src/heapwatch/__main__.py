"""`python -m heapwatch script.py`, the same as `heapwatch script.py`."""

from .watch.command import main

if __name__ == "__main__":
    main()
