"""`python -m reverie.memory.watch`, the same as `reverie-watch`."""

from .command import main

if __name__ == "__main__":
    main()
