"""Fill a replay for ten million steps with new Pong play, and monitor the replay's memory and windows."""

from collections.abc import Iterator

import numpy as np
import psutil
import torch
from heapwatch.counters.glibc import in_use_bytes
from heapwatch.leaks.detector import classify_trend

from benchmarks.peers.serve import peak_mb
from reverie.buffers import EpisodeReplayBuffer, LatentSpec, ReplayConfig, ReplaySpec, StoredLatent
from reverie.envs import EnvConfig, make_environment

CAPACITY, ENVS, BUDGET_GIB, LATENT_EVERY = 10_000_000, 8, 1.4, 16
# These are the sizes of size1m.
LATENT = LatentSpec(deter_size=512, num_latents=32)
_ROWS, _BINS, _DRAWN = 96, 20, 100_000
_TOLERANCE_BYTES = 1e6


def fill_deep(steps: int) -> Iterator[dict[str, object]]:
    """Add random play from eight emulators. Yield memory and times at 96 moments, then the memory verdict."""
    environment, chance = make_environment(EnvConfig(game="pong", num_envs=ENVS), 0), np.random.default_rng(0)
    spec = environment.spec
    config = ReplayConfig(
        capacity=CAPACITY, memory_budget_gib=BUDGET_GIB, compressed=True, latent_every=LATENT_EVERY
    )
    request = ReplaySpec.of(spec, config, latent=LATENT)
    replay = EpisodeReplayBuffer(request, generator=np.random.default_rng(0))
    latent = StoredLatent(torch.zeros(ENVS, 512), torch.zeros(ENVS, 32, dtype=torch.uint8))
    actions = np.eye(spec.action.size, dtype=np.float32)
    step, kept, in_use = environment.reset(), None, []
    count = steps // ENVS
    for index in range(1, count + 1):
        action = actions[chance.integers(spec.action.size, size=ENVS)]
        replay.add(step, action, latent)
        step = environment.step(action)
        if index % max(1, count // _ROWS) == 0 and replay.can_sample:
            kept = replay.sample(16, out=kept)
            in_use.append(in_use_bytes())
            resident = psutil.Process().memory_info().rss
            yield {"added": index * ENVS, **replay.stats(), "resident_mb": resident / 1e6}
    environment.close()
    trend = classify_trend(in_use, _TOLERANCE_BYTES)
    yield {
        "planned_gib": replay.plan.nbytes / 2**30,
        "guaranteed_steps": replay.plan.guaranteed,
        "peak_resident_mb": peak_mb("cpu"),
        "in_use_verdict": trend.verdict.value,
        "bytes_in_use_per_sample": trend.slope_bytes_per_sample,
        "chi_square_of_starts": chi_square(replay),
        "degrees_of_freedom": _BINS - 1,
        "content_hash": replay.content_hash(),
    }


def chi_square(replay: EpisodeReplayBuffer) -> float:
    """Return the chi-square statistic for window starts over twenty equal parts of each stream."""
    counts = np.zeros(_BINS)
    for _ in range(_DRAWN // 100):
        positions = replay.sample(100).positions
        share = positions.start / replay._index.records.tail[positions.env]
        counts += np.bincount((share * _BINS).astype(int), minlength=_BINS)
    expected = counts.sum() / _BINS
    return float(((counts - expected) ** 2 / expected).sum())
