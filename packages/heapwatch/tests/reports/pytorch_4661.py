"""Differentiate a gradient that backward has computed.

Report: https://github.com/pytorch/pytorch/issues/4661
Cause: with create_graph, a parameter and its gradient reference each other in C++, and are never freed.
Resolution: use `torch.autograd.grad`, or set the gradients to None.
"""

import torch


def new_loss() -> tuple[torch.nn.Linear, torch.Tensor]:
    model = torch.nn.Linear(100, 100)
    return model, model(torch.ones(8, 100)).tanh().square().mean()


def step(number: int) -> None:
    _, loss = new_loss()
    loss.backward(create_graph=True)  # grows


def resolved(number: int) -> None:
    model, loss = new_loss()
    torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
