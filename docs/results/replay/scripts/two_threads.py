"""Measure whether two threads that decode halves of a batch are faster than one: two_threads.py <out.json>

Run it in the repository root. It plays and fills on one core, then samples batches of 16 windows of 65
records with one and two threads in turn, with pauses, so that other load affects both equally.
"""

import copy
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[4]))

from benchmarks.compression import WINDOWS, _register, buffer_of, fill, play, random_policy
from reverie.buffers import EpisodeReplayBuffer
from reverie.buffers.codec import ChunkCodec
from reverie.buffers.compressed import CompressedStore
from reverie.envs import EnvConfig
from reverie.envs.config import Suite

RECORDS, ROUNDS, PAUSE = 10_000, 200, 0.02
BOXING = EnvConfig(game="boxing", num_envs=2)


def filled(config: EnvConfig, steps: int) -> EpisodeReplayBuffer:
    """Return a compressed buffer of random play."""
    played = play(config, steps, lambda spec: random_policy(spec, 1))
    buffer = buffer_of(played.env, RECORDS, compressed=True, latent_every=8)
    fill(buffer, played, RECORDS)
    return buffer


def with_own_codec(buffer: EpisodeReplayBuffer) -> EpisodeReplayBuffer:
    """Return the same records with a separate codec for another thread."""
    other = copy.copy(buffer)
    other._store = store = copy.copy(store_of(buffer))
    store._codec = ChunkCodec(store._codec.layout)
    return other


def store_of(buffer: EpisodeReplayBuffer) -> CompressedStore:
    """Return the store of the codes."""
    assert isinstance(buffer._store, CompressedStore)
    return buffer._store


def seconds(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the time of a call."""
    begin = clock()
    call()
    return clock() - begin


def measure(buffer: EpisodeReplayBuffer) -> dict[str, object]:
    """Return times of one thread, of two, of decoding a chunk, and of decoding's share outside the lock."""
    whole, halves = buffer.sample(WINDOWS), [buffer.sample(WINDOWS // 2) for _ in range(2)]
    buffers, chance = [with_own_codec(buffer) for _ in range(2)], [np.random.default_rng(i) for i in range(2)]

    def one() -> None:
        buffer.sample(WINDOWS, out=whole)

    def half(index: int) -> None:
        buffers[index].sample(WINDOWS // 2, chance[index], halves[index])

    times: dict[str, list[float]] = {"one": [], "two": [], "one_cpu": []}
    with ThreadPoolExecutor(2) as threads:
        for _ in range(ROUNDS):
            time.sleep(PAUSE)
            times["one"].append(seconds(one))
            time.sleep(PAUSE)
            times["two"].append(seconds(lambda: list(threads.map(half, range(2)))))
            times["one_cpu"].append(seconds(one, time.thread_time))
    store = store_of(buffer)
    codes = [store._pages.get(chunk) for chunk in np.flatnonzero(store._pages._nbytes).tolist()]
    decode, decompress = partial(store._codec.decode, count=48), store._codec._decompressor.decompress
    decoded, unlocked = (
        median(seconds(partial(call, code), time.thread_time) for code in codes)
        for call in (decode, decompress)
    )
    found: dict[str, object] = {
        f"{name}_ms": {"median": median(each) * 1e3, "best": min(each) * 1e3} for name, each in times.items()
    }
    return found | {"decode_us": decoded * 1e6, "decompress_us": unlocked * 1e6}


def main() -> None:
    """Measure both environments."""
    torch.set_num_threads(1)
    cores = os.sched_getaffinity(0)
    cheetah = EnvConfig(suite=Suite.gymnasium, id=_register(), num_envs=2, action_repeat=1)
    result = {}
    for name, config, steps in (("boxing", BOXING, 3000), ("HalfCheetah-v5, rendered", cheetah, 500)):
        os.sched_setaffinity(0, {min(cores)})
        buffer = filled(config, steps)
        os.sched_setaffinity(0, cores)
        result[name] = measure(buffer)
        print(name, json.dumps(result[name]), flush=True)
    Path(sys.argv[1]).write_text(json.dumps({"cores": len(cores), "rows": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
