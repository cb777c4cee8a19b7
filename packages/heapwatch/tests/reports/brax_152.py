"""Add up the losses of an epoch.

Report: https://github.com/google/brax/pull/152
Cause: the sum is part of the autograd graph, and keeps the graph of every loss.
Resolution: detach each loss before it is added.
"""

import torch

policy = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(8)))
optimizer = torch.optim.Adam(policy.parameters())
total_loss = torch.zeros(())


def update() -> torch.Tensor:
    optimizer.zero_grad()
    loss = policy(torch.randn(64, 16)).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def add(loss: torch.Tensor) -> None:
    global total_loss
    total_loss += loss  # grows


def step(number: int) -> None:
    for _ in range(8):
        add(update())


def resolved(number: int) -> None:
    for _ in range(8):
        add(update().detach())
