"""Play a checkpoint: `python scripts/evaluate.py run=<folder> episodes=20`."""

if __name__ == "__main__":  # the processes of environments import this file
    from reverie.commands.entry import evaluate

    evaluate()
