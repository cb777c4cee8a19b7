"""Train with the incident's fault beyond its detection, so that snapshots on a GPU form a series.

`python fault_series.py device=cuda model=size1m run_dir=<run> memory.snapshot_interval=500
training.total_timesteps=6000 training.train_ratio=2`, then `scripts/analyze_memory_snapshot.py`.
"""

import sys

from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.orchestration.recipes import recipe_of
from reverie.orchestration.run import open_run
from reverie.orchestration.signals import Signals
from reverie.testing.faults import find_fault

if __name__ == "__main__":
    always = ["experiment=dreamer_incident", "compile=none", "memory.on_leak=warn"]
    [job] = compose_jobs([*always, *sys.argv[1:]])
    config = typed(job)
    with Signals() as signals, open_run(config, signals, recipe_of(config)) as run:
        find_fault("rssm_cache_not_detached").inject(run)
        run.run()
