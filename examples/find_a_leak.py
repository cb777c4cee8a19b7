"""Watch a training loop that keeps its losses, and report the holder: `python examples/find_a_leak.py`."""

import torch
from heapwatch import Watch


class Trainer:
    """A small training loop with the most common kind of leak."""

    def __init__(self) -> None:
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01)
        self.losses: list[torch.Tensor] = []

    def step(self) -> None:
        """Make one update."""
        loss = self.network(torch.randn(256, 64)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        # Appending loss.item() would not leak.
        self.losses.append(self.network(torch.randn(256, 64)).square().mean())


trainer, step = Trainer(), 0
# The defaults (half a second between samples, 1 % of the time) are for programs that run for hours.
with Watch(roots={"trainer": trainer}, seconds=0.02, share=0.5, folder="memory") as watch:
    while watch.verdict != "leak" and step < 5_000:
        trainer.step()
        step += 1
        watch.sample(step)
print(f"{watch.verdict} after {step} steps. The log names the holder, and memory/watch.html shows curves.")
