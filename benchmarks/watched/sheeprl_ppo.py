"""SheepRL's own command: PPO on CartPole."""

import argparse
import sys

from sheeprl.cli import run

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20_000, help="optimiser steps")
steps = parser.parse_args().steps

# An iteration has 128 transitions in 4 batches, repeated 10 times.
iterations = -(-steps // 40)
sys.argv[1:] = [
    "exp=ppo",
    "env.num_envs=1",
    "env.sync_env=True",
    "env.capture_video=False",
    "algo.rollout_steps=128",
    "algo.per_rank_batch_size=32",
    "algo.update_epochs=10",
    f"algo.total_steps={128 * iterations}",
    "algo.mlp_keys.encoder=[state]",
    "algo.run_test=False",
    "checkpoint.every=1000000000",
    "checkpoint.save_last=False",
    "num_threads=1",
    "seed=1",
]
run()
