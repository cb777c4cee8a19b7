"""A process that runs updates and reports its memory in one line of JSON."""

import gc
import json
import sys
from typing import Any

import torch
from heapwatch.counters.glibc import in_use_bytes
from torch.profiler import ProfilerActivity, profile

from benchmarks.peers.serve import peak_mb, reset_peak
from benchmarks.suite.bench import pong_spec
from benchmarks.suite.data import random_batch
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import typed
from reverie.orchestration.dreamer.recipe import build_workflow
from reverie.utils.seeding import seed_global

_MB = 1e6
_ALLOCATIONS, _SEGMENTS = "allocation.all.allocated", "segment.all.allocated"


def main() -> None:
    """Print a JSON object with the initial resident memory, and each update's peak and remainder."""
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["threads"])
    config = typed(compose_jobs(options["overrides"])[0], DreamerTrainConfig)
    device = torch.device(config.device.value)
    seed_global(config.seed)
    before_mb = peak_mb(device.type)
    workflow = build_workflow(config, pong_spec(1))
    batch = random_batch(config, workflow.env).to(device)
    report: dict[str, Any] = {"before_mb": before_mb, "peaks_mb": [], "in_use_bytes": [], "cuda": []}
    for _ in range(options["updates"]):
        reset_peak(device.type)
        before = _cuda_counts(device)
        workflow.update(batch)
        report["peaks_mb"].append(peak_mb(device.type))
        after = _cuda_counts(device)
        report["cuda"].append({name: after[name] - before[name] for name in before})
        gc.collect()
        report["in_use_bytes"].append(in_use_bytes())
    parameters = 4 * workflow.num_parameters
    observation = sum(images.nbytes for images in batch.observation.values())
    # Each parameter has a gradient and two moments. The critic also has a slow copy.
    report["least_mb"] = before_mb + (4 * parameters + observation) / _MB
    report["host_allocations"] = _host_allocations(lambda: workflow.update(batch))
    print(json.dumps(report))


def _cuda_counts(device: torch.device) -> dict[str, int]:
    """Return the number of calls to the caching allocator, and of the allocator's calls to the driver."""
    if device.type != "cuda":
        return {}
    stats = torch.cuda.memory_stats()
    return {"allocations": stats.get(_ALLOCATIONS, 0), "segments": stats.get(_SEGMENTS, 0)}


def _host_allocations(update: Any) -> dict[str, float]:
    """Return the number and the total MB of host blocks that torch allocates in one update."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        update()
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    # torch does not have type annotations for these events.
    events: list[Any] = profiler.profiler.kineto_results.events()
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    allocated = [size for size in sizes if size > 0]
    return {"blocks": len(allocated), "mb": sum(allocated) / _MB}


if __name__ == "__main__":
    main()
