"""What a run will take, before it starts: `python scripts/plan_memory.py experiment=dreamer_ataripong`."""

from reverie.orchestration.memory_plan.command import main

if __name__ == "__main__":
    main()
