"""Show, export or import episodes: `python scripts/episodes.py show path=<folder>`."""

if __name__ == "__main__":
    from reverie.commands.entry import episodes

    episodes()
