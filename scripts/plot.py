"""Compare runs: `python scripts/plot.py experiments/<run> experiments/<run> out=report.html`."""

if __name__ == "__main__":
    from reverie.commands.entry import plot

    plot()
