"""Export weights only: `python scripts/export.py run=experiments/<run> out=<new folder>`."""

# Environment processes import this file.
if __name__ == "__main__":
    from reverie.commands.entry import export

    export()
