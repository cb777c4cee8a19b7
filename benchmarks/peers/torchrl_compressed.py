"""torchrl's CompressedListStorage: add one environment's frames a hundred at a time, and read windows."""

import time

import numpy as np
import torch
from serve import Server
from tensordict import TensorDict
from torchrl.data import CompressedListStorage

CHUNK = 100
server = Server()
options = server.options
frames = torch.from_numpy(np.load(options["frames"]))
storage = CompressedListStorage(len(frames))

start = time.perf_counter()
for first in range(0, len(frames), CHUNK):
    piece = frames[first : first + CHUNK]
    storage.set(range(first, first + len(piece)), TensorDict({"image": piece}, [len(piece)]))
seconds = time.perf_counter() - start
held = sum(code.numel() for item in storage._storage for code in item.values())

chance = np.random.default_rng(0)
windows, length = options["windows"], options["length"]


def draw() -> None:
    """Read the frames of a batch of windows without a sampler, which would only add time."""
    starts = chance.integers(len(frames) - length, size=(windows, 1))
    storage.get((starts + np.arange(length + 1)).ravel().tolist())


server.ready(
    "torchrl",
    "tensordict",
    bytes_per_step=held / len(frames),
    add_us_per_step=seconds / len(frames) * 1e6,
)
server.run(draw)
