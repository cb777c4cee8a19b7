"""sheeprl's own training loop on Pong, in cycles of 32 agent steps and one update."""

import tempfile
from typing import Any

from serve import Server
from sheeprl.algos.dreamer_v3_5 import dreamer_v3_5
from sheeprl.cli import check_configs, run_algorithm
from sheeprl_agent import compose

server = Server()
quick = ["algo.learning_starts=64"] if server.options["quick"] else ["algo.learning_starts=1024"]
cfg = compose(
    server.options,
    "env=atari",
    "env.capture_video=False",
    "env.sync_env=True",
    "algo.replay_ratio=0.03125",
    "algo.total_steps=1000000000",
    "buffer.size=20000",
    "buffer.memmap=False",
    "buffer.checkpoint=False",
    "metric.log_level=0",
    "checkpoint.every=0",
    "checkpoint.save_last=False",
    f"log_root={tempfile.mkdtemp()}",
    *quick,
)
cycles = server.cycles("sheeprl", "ale-py")
write_latent_states = dreamer_v3_5.write_latent_states


def after_update(*arguments: Any) -> None:
    """Write back the latents, and end a cycle."""
    write_latent_states(*arguments)
    next(cycles)


dreamer_v3_5.write_latent_states = after_update
check_configs(cfg)
run_algorithm(cfg)
