"""Play a checkpoint: `python scripts/evaluate.py run=<folder> episodes=20`."""

from reverie.orchestration.evaluate import main

if __name__ == "__main__":
    main()
