"""Kill a run, resume it, compare it with the unbroken one: `scripts/chaos.py experiment=dreamer_catch`."""

from reverie.commands.entry import chaos

if __name__ == "__main__":
    chaos()
