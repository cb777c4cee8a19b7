"""sheeprl's replay of sequences in RAM: add one vector step per call, or sample a batch of windows."""

import numpy as np
import psutil
from serve import Server
from sheeprl.data.buffers import EnvIndependentReplayBuffer, SequentialReplayBuffer

server = Server()
options = server.options
envs, per_env = options["envs"], options["steps"] // options["envs"]
batch, length = (2, 8) if options["quick"] else (16, 64)
generator = np.random.default_rng(0)


def vector_step() -> dict[str, np.ndarray]:
    """Return the data that sheeprl stores for a step of all environments, without latents."""
    flag = np.zeros((1, envs, 1), np.float32)
    return {
        "rgb": generator.integers(256, size=(1, envs, 3, 64, 64), dtype=np.uint8),
        "actions": np.eye(6, dtype=np.float32)[generator.integers(6, size=(1, envs))],
        "rewards": flag,
        "is_first": flag,
        "terminated": flag,
        "truncated": flag,
    }


pool = [vector_step() for _ in range(64)]
before = psutil.Process().memory_info().rss
replay = EnvIndependentReplayBuffer(per_env, n_envs=envs, buffer_cls=SequentialReplayBuffer, seed=0)
added = 0


def add() -> None:
    """Add a step of each environment."""
    global added
    replay.add(pool[added % len(pool)])
    added += 1


for _ in range(per_env):
    add()
held = (psutil.Process().memory_info().rss - before) / (per_env * envs)
server.ready("sheeprl", measured_bytes_per_step=held)
if options["mode"] == "add":
    server.run(add)
else:
    server.run(lambda: replay.sample_tensors(batch, sequence_length=length))
