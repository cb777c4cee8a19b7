"""Probe a world model of Pong: `python scripts/probe.py run=<folder>`."""

if __name__ == "__main__":  # the processes of environments import this file
    from reverie.commands.entry import probe

    probe()
