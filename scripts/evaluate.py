"""Play a checkpoint: `python scripts/evaluate.py run=<folder> episodes=20`."""

if __name__ == "__main__":  # the processes of environments import this file, and need no torch
    from reverie.orchestration.evaluate import main

    main()
