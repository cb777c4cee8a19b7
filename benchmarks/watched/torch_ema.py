"""A small image classifier with an exponential moving average of its weights, on random images."""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1_200, help="optimizer steps")
steps = parser.parse_args().steps


class Classifier(nn.Module):
    """Two convolutions and a linear head."""

    def __init__(self, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 24, 3), nn.ReLU(), nn.Flatten()),
        )
        self.head = nn.Linear(1_944, classes)

    def forward(self, images):  # noqa: D102
        return self.head(self.features(images))


def random_batches(size=8):
    """Yield noisy images, and labels that depend on their brightness."""
    generator = torch.Generator().manual_seed(2)
    while True:
        labels = torch.randint(10, (size,), generator=generator)
        images = torch.rand(size, 3, 24, 24, generator=generator) + labels.view(-1, 1, 1, 1) / 10
        yield images, labels


def train(model, ema, optimizer):
    """Train the model, and update the average of its weights after each step."""
    smoothed = 0.0
    for step, (images, labels) in zip(range(steps), random_batches(), strict=False):
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
        smoothed = 0.99 * smoothed + 0.01 * loss.item()
        if step % 100 == 0:
            print(f"{step} {smoothed:.3f}", flush=True)
        time.sleep(0.04)


torch.set_num_threads(1)
torch.manual_seed(1)
classifier = Classifier()
average = AveragedModel(classifier, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
train(classifier, average, torch.optim.AdamW(classifier.parameters(), lr=1e-3))
