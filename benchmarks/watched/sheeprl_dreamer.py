"""SheepRL's own command: its smallest DreamerV3 on the state vector of CartPole."""

import argparse
import sys

from sheeprl.cli import run

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "--steps", type=int, default=1_000, help="gradient steps, each of one of three optimizers"
)
steps = parser.parse_args().steps

sys.argv[1:] = [
    "exp=dreamer_v3",
    "algo=dreamer_v3_XS",
    "env=gym",
    "env.num_envs=1",
    "env.sync_env=True",
    "env.capture_video=False",
    "algo.cnn_keys.encoder=[]",
    "algo.cnn_keys.decoder=[]",
    "algo.mlp_keys.encoder=[state]",
    "algo.mlp_keys.decoder=[state]",
    "algo.dense_units=16",
    "algo.mlp_layers=1",
    "algo.world_model.discrete_size=4",
    "algo.world_model.stochastic_size=4",
    "algo.world_model.recurrent_model.recurrent_state_size=32",
    "algo.world_model.transition_model.hidden_size=16",
    "algo.world_model.representation_model.hidden_size=16",
    "algo.horizon=5",
    "algo.per_rank_batch_size=4",
    "algo.per_rank_sequence_length=8",
    "algo.learning_starts=256",
    f"algo.total_steps={256 + steps}",
    "algo.run_test=False",
    "buffer.size=100000",
    "buffer.memmap=False",
    "buffer.checkpoint=False",
    "checkpoint.every=1000000000",
    "checkpoint.save_last=False",
    "num_threads=1",
    "seed=1",
]
run()
