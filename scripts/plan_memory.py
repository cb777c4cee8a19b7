"""Predict a run's memory before it starts: `python scripts/plan_memory.py experiment=dreamer_ataripong`."""

from reverie.commands.entry import plan

if __name__ == "__main__":
    plan()
