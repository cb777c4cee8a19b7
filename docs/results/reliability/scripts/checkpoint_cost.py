"""Measure the cost of a checkpoint after 1,000 new steps at several fill levels of the replay.

checkpoint_cost.py <results.json> [overrides for the run ...]

The replay has real Pong frames of a random policy, and latents of the model's size. Results are means of 4
checkpoints at each fill level: first with only new steps, then also with the latents that the updates of
1,000 steps write back, according to the preset's training.train_ratio.
"""

import json
import platform
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from reverie.buffers import StoredLatent
from reverie.checkpoints.checkpoint import save_checkpoint
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import typed
from reverie.orchestration.recipes import recipe_of

FILLS, NEW_STEPS = (10_000, 50_000, 100_000), 1000
# During the repeats, the open chunks of 4 environments fill up once.
REPEATS = 4


def main(out: Path, overrides: list[str]) -> None:
    capacity = f"buffer.capacity={max(FILLS) + 2 * NEW_STEPS * (REPEATS + 1)}"
    [job] = compose_jobs(["experiment=dreamer_ataripong", "device=cpu", capacity, *overrides])
    config = typed(job, DreamerTrainConfig)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        run_dir = Path(folder)
        parts = recipe_of(config).build(config, run_dir)
        replay, workflow, environment = parts.replay, parts.workflow, parts.environment
        model, chance = workflow.state_dict(), np.random.default_rng(0)
        training, size, envs = config.training, config.model, config.env.num_envs
        updates = round(NEW_STEPS * training.train_ratio / (training.batch_size * training.sequence_length))
        arrival, step = environment.reset(), 0

        def collect(until: int) -> None:
            nonlocal arrival
            while replay.total_steps < until:
                action = np.eye(6, dtype=np.float32)[chance.integers(6, size=envs)]
                replay.add(arrival, action, latents((envs,)))
                arrival = environment.step(action)

        def latents(shape: tuple[int, ...]) -> StoredLatent:
            stoch = torch.randint(size.classes, (*shape, size.stoch), dtype=torch.uint8)
            return StoredLatent(torch.randn(*shape, size.deter), stoch)

        def learn() -> None:
            for _ in range(updates):
                positions = replay.sample(training.batch_size).positions
                fresh = latents((training.batch_size, training.sequence_length))
                replay.write_back(positions, fresh.deter, fresh.stoch)

        def save() -> dict[str, float]:
            nonlocal step
            step += 1
            before = written()
            # This resets the peak.
            Path("/proc/self/clear_refs").write_text("5")
            held, started = status("VmRSS"), time.perf_counter()
            save_checkpoint(run_dir, step, {}, model, replay, keep=2)
            seconds = time.perf_counter() - started
            new = {path: size for path, size in written().items() if path not in before}
            return {
                "bytes": sum(new.values()),
                "model_bytes": sum(v for k, v in new.items() if "/model." in k),
                "latent_bytes": sum(v for k, v in new.items() if "/latents_" in k),
                "seconds": seconds,
                "extra_rss_bytes": status("VmHWM") - held,
                "folder_bytes": sum(written().values()),
            }

        def written() -> dict[str, int]:
            files = (run_dir / "checkpoints").rglob("*")
            return {str(path): path.stat().st_size for path in files if path.is_file()}

        rows = []
        for fill in FILLS:
            collect(fill - NEW_STEPS)
            save()
            for with_updates in (False, True):
                samples = []
                for _ in range(REPEATS):
                    collect(replay.total_steps + NEW_STEPS)
                    if with_updates:
                        learn()
                    samples.append(save())
                means = {key: statistics.mean(sample[key] for sample in samples) for key in samples[0]}
                fastest = min(sample["seconds"] for sample in samples)
                row = {"stored_steps": replay.total_steps, "updates": updates * with_updates, **means}
                row["seconds_of_fastest"] = fastest
                rows.append(row)
                print(row, flush=True)
        environment.close()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cpu": cpu_name()}
    out.write_text(json.dumps({"overrides": overrides, **versions, "rows": rows}, indent=1) + "\n")


def status(name: str) -> int:
    """Return a line of /proc/self/status in bytes."""
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"{name}:\s+(\d+) kB", text)
    assert found
    return 1024 * int(found[1])


def cpu_name() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else "unknown"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
