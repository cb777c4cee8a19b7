"""Play a checkpoint: `python scripts/evaluate.py run=<folder> episodes=20`."""

# Environment processes import this file.
if __name__ == "__main__":
    from reverie.commands.entry import evaluate

    evaluate()
