"""cpprb's ReplayBuffer: add one vector step per call, or sample a batch of single steps."""

import numpy as np
import psutil
from cpprb import ReplayBuffer
from serve import Server

server = Server()
options = server.options
steps, envs = options["steps"], options["envs"]
drawn = 2 * 8 if options["quick"] else 16 * 64
generator = np.random.default_rng(0)
flag = {"shape": 1, "dtype": np.float32}
pool = [
    {
        "rgb": generator.integers(256, size=(envs, 64, 64, 3), dtype=np.uint8),
        "action": np.eye(6, dtype=np.float32)[generator.integers(6, size=envs)],
        **{name: np.zeros((envs, 1), np.float32) for name in ("reward", "is_first", "done", "terminated")},
    }
    for _ in range(64)
]
before = psutil.Process().memory_info().rss
replay = ReplayBuffer(
    steps,
    {
        "rgb": {"shape": (64, 64, 3), "dtype": np.uint8},
        "action": {"shape": 6, "dtype": np.float32},
        **{name: flag for name in ("reward", "is_first", "done", "terminated")},
    },
)
added = 0


def add() -> None:
    """Add a step of each environment."""
    global added
    replay.add(**pool[added % len(pool)])
    added += 1


for _ in range(steps // envs):
    add()
held = (psutil.Process().memory_info().rss - before) / steps
server.ready("cpprb", measured_bytes_per_step=held)
server.run(add if options["mode"] == "add" else lambda: replay.sample(drawn))
