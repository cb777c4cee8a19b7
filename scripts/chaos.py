"""Kill a run, resume it, compare it with the unbroken one: `scripts/chaos.py experiment=dreamer_catch`."""

from reverie.orchestration.chaos import main

if __name__ == "__main__":
    main()
