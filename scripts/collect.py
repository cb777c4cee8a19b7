"""Play for a learner on another machine: `python scripts/collect.py address=<host>:<port>`."""

if __name__ == "__main__":  # the processes of environments import this file
    from reverie.commands.entry import collect

    collect()
