"""Lightning's Trainer.fit: a small classifier on random data."""

import argparse

import lightning
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    """Two layers with a cross-entropy loss."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def training_step(self, batch, _index):
        """Return and log the loss of one batch."""
        inputs, labels = batch
        loss = functional.cross_entropy(self.layers(inputs), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        """Return Adam with its default learning rate."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20_000, help="optimiser steps")
steps = parser.parse_args().steps

torch.set_num_threads(1)
lightning.seed_everything(1)
data = TensorDataset(torch.randn(16_384, 64), torch.randint(0, 10, (16_384,)))
trainer = lightning.Trainer(
    accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(Classifier(), DataLoader(data, batch_size=64, shuffle=True))
