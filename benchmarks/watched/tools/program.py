"""A small training program with one of five leaks, for comparing tools: program.py <leak> <steps>.

It runs at most 250 steps per second, like training at a fixed data rate. `none` does not leak.
"""

import ctypes
import os
import sys
import time
from collections import deque

import numpy as np
import torch
from torch import nn

SECONDS_A_STEP = 0.004
TEXT = b"1" * 65_535
LIBC = ctypes.CDLL(None)
LIBC.strdup.restype = ctypes.c_void_p


class Trainer:
    """Trains a model and keeps the leaked objects."""

    def __init__(self) -> None:
        self.model = nn.Linear(256, 256)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.history: list[torch.Tensor] = []
        self.window: deque[np.ndarray] = deque()
        self.by_step: dict[int, torch.Tensor] = {}

    def update(self, leak: str, step: int) -> None:
        """Run one optimizer step, and leak."""
        loss = self.model(torch.randn(64, 256)).square().mean()
        self.optimizer.zero_grad()
        if leak == "graph":
            self.history.append(self.model(torch.randn(64, 256)).square().mean())
        elif leak == "view":
            self.window.append(np.full(65_536, 1, np.uint8)[:1])
        elif leak == "tensors":
            self.by_step[step] = torch.full((16_384,), 1.0)
        elif leak == "native":
            # This calls malloc as any library would, so tools can see the allocation.
            LIBC.strdup(TEXT)
        elif leak == "files" and step % 10 == 0:
            os.open("/dev/null", os.O_RDONLY)
        loss.backward()
        self.optimizer.step()


def main(leak: str, steps: int) -> None:
    """Train."""
    torch.set_num_threads(1)
    trainer = Trainer()
    began = time.monotonic()
    for step in range(steps):
        trainer.update(leak, step)
        time.sleep(max(0.0, began + (step + 1) * SECONDS_A_STEP - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
