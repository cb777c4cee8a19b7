"""Watch a training loop that keeps its losses, and say who holds them: `python examples/find_a_leak.py`."""

import torch
from heapwatch import Watch


class Trainer:
    """A small training loop with the most common leak there is."""

    def __init__(self) -> None:
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01)
        self.losses: list[torch.Tensor] = []

    def step(self) -> None:
        """Make an update."""
        loss = self.network(torch.randn(256, 64)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(self.network(torch.randn(256, 64)).square().mean())  # repair: .item()


trainer, step = Trainer(), 0
# Half a second between samples and 1 % of the time are the defaults, for a program that runs for hours.
with Watch(roots={"trainer": trainer}, seconds=0.02, share=0.5, folder="memory") as watch:
    while watch.verdict != "leak" and step < 5_000:
        trainer.step()
        step += 1
        watch.sample(step)
print(f"{watch.verdict} after {step} steps, which the log names; memory/watch.html draws it")
