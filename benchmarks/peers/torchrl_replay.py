"""torchrl's TensorDictReplayBuffer with SliceSampler: add 100 steps of one environment, or sample windows.

A call that adds is reported as 8/100 of its time, because the other replays add 8 steps per call.
"""

import psutil
import torch
from serve import Server
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

CHUNK = 100
server = Server()
options = server.options
steps, envs = options["steps"], options["envs"]
batch, length = (2, 8) if options["quick"] else (16, 64)


def chunk(env: int) -> TensorDict:
    """Return consecutive steps of one environment."""
    flag = torch.zeros(CHUNK, 1, dtype=torch.bool)
    return TensorDict(
        {
            "rgb": torch.randint(256, (CHUNK, 64, 64, 3), dtype=torch.uint8),
            "action": torch.eye(6)[torch.randint(6, (CHUNK,))],
            "reward": torch.randn(CHUNK, 1),
            "is_first": flag,
            "done": flag,
            "terminated": flag,
            "episode": torch.full((CHUNK,), env),
        },
        [CHUNK],
    )


pool = [chunk(env) for env in range(envs)]
before = psutil.Process().memory_info().rss
replay = TensorDictReplayBuffer(
    storage=LazyTensorStorage(steps),
    sampler=SliceSampler(slice_len=length, traj_key="episode", cache_values=True, strict_length=True),
    batch_size=batch * length,
)
added = 0


def add() -> None:
    """Add a chunk of the next environment."""
    global added
    replay.extend(pool[added % envs])
    added += 1


for _ in range(steps // CHUNK + 1):
    add()
held = (psutil.Process().memory_info().rss - before) / steps
server.ready("torchrl", "tensordict", measured_bytes_per_step=held)
if options["mode"] == "add":
    server.run(add, share=envs / CHUNK)
else:
    server.run(replay.sample)
