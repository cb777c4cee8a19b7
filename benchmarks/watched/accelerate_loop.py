"""Accelerate's training loop: a small transformer encoder on random sequences."""

import argparse

import torch
from accelerate import Accelerator
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=10_000, help="optimiser steps")
steps = parser.parse_args().steps


class Encoder(torch.nn.Module):
    """An encoder layer with a linear head."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.head = torch.nn.Linear(32, 4)

    def forward(self, inputs):
        """Return the logits of a batch of sequences."""
        return self.head(self.layer(inputs).mean(1))


def sequences():
    """Return a loader of an epoch's sequences."""
    data = TensorDataset(torch.randn(1_024, 16, 32), torch.randint(0, 4, (1_024,)))
    return DataLoader(data, batch_size=16, shuffle=True)


torch.set_num_threads(1)
torch.manual_seed(1)
accelerator = Accelerator(cpu=True)
model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, sequences())
for epoch in range(steps // 64):
    right = 0
    for inputs, labels in loader:
        logits = model(inputs)
        loss = functional.cross_entropy(logits, labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        predictions, truth = accelerator.gather_for_metrics((logits.argmax(-1), labels))
        right += int((predictions == truth).sum())
    accelerator.print(f"{epoch} {right / 1_024:.3f}", flush=True)
