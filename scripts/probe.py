"""Probe a Pong world model: `python scripts/probe.py run=<folder>`."""

# Environment processes import this file.
if __name__ == "__main__":
    from reverie.commands.entry import probe

    probe()
