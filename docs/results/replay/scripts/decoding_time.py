"""Print the number of batches of 16 windows of 65 records that one thread decodes, for the two largest codes.

PYTHONPATH=. OMP_NUM_THREADS=1 python docs/results/replay/scripts/decoding_time.py

This measures the same as `scripts/compression.py`, but in a process without other work, and as the median of
300 batches per row.
"""

import json
import time
from functools import partial
from statistics import median

import torch

from benchmarks import compression
from reverie.envs import EnvConfig
from reverie.envs.config import Suite

BATCHES, RECORDS = 300, 40_000

if __name__ == "__main__":
    torch.set_num_threads(1)
    cheetah = EnvConfig(suite=Suite.gymnasium, id=compression._register(), num_envs=2, action_repeat=1)
    for name, config, steps in (
        ("boxing", EnvConfig(game="boxing", num_envs=2), 3000),
        ("HalfCheetah-v5, rendered", cheetah, 500),
    ):
        play = compression.play(config, steps, partial(compression.random_policy, hold=1))
        replay = compression.buffer_of(play.env, RECORDS, compressed=True, latent_every=8)
        compression.fill(replay, play, RECORDS)
        batch, seconds = replay.sample(compression.WINDOWS), []
        for _ in range(BATCHES):
            began = time.perf_counter()
            replay.sample(compression.WINDOWS, out=batch)
            seconds.append(time.perf_counter() - began)
        print(
            json.dumps({"environment": name, "batches_a_second": round(1 / median(seconds), 1)}), flush=True
        )
