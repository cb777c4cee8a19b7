"""Write networks alone: `python scripts/export.py run=experiments/<run> out=<new folder>`."""

if __name__ == "__main__":  # the processes of environments import this file
    from reverie.commands.entry import export

    export()
