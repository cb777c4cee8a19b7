"""A convolutional network with images from two DataLoader workers, judged by TorchMetrics."""

import argparse

import torch
import torchmetrics
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=4_000, help="optimiser steps")
steps = parser.parse_args().steps


class Images(Dataset):
    """Random images with a label, created on demand."""

    def __len__(self):
        return 1_024

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.rand(1, 16, 16, generator=generator), index % 2


torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 8, 3, 2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(392, 1)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
mean_loss, accuracy = torchmetrics.MeanMetric(), torchmetrics.classification.BinaryAccuracy()
loader = DataLoader(Images(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
for epoch in range(steps // 64):
    for images, labels in loader:
        logits = model(images).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(logits, labels.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean_loss.update(loss.detach())
        accuracy.update(logits.detach(), labels)
    print(f"{epoch} {mean_loss.compute():.3f} {accuracy.compute():.3f}", flush=True)
    mean_loss.reset()
    accuracy.reset()
