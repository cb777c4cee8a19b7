"""Many runs on Ray: `python scripts/sweep.py experiment=dreamer_catch seed=1,2 sweep.out=sweeps/catch`."""

from reverie.commands.entry import sweep

if __name__ == "__main__":
    sweep()
