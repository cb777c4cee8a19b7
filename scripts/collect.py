"""Collect steps for a learner on another machine: `python scripts/collect.py address=<host>:<port>`."""

# Environment processes import this file.
if __name__ == "__main__":
    from reverie.commands.entry import collect

    collect()
