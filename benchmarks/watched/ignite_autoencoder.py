"""An autoencoder on a stream of random images, with PyTorch-Ignite engines for training and validation."""

import argparse
import time

import torch
from ignite.engine import Engine, Events
from ignite.metrics import MeanSquaredError, RunningAverage
from torch import nn
from torch.nn import functional

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1_200, help="optimizer steps")
steps = parser.parse_args().steps


def stream(seed):
    """Yield batches of striped images."""
    generator = torch.Generator().manual_seed(seed)
    columns = torch.linspace(0, 6, 1_024)
    while True:
        yield torch.sin(columns + 6 * torch.rand(32, 1, generator=generator))


def train_step(engine, images):
    """Train with a batch of images."""
    loss = functional.mse_loss(model(images), images)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.04)
    return loss.item()


@torch.no_grad()
def validate(engine, images):
    """Return the restored and the original images."""
    restored = model(images)
    return restored, images


torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(1_024, 32), nn.ReLU(), nn.Linear(32, 8), nn.Linear(8, 1_024))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
validation = [images for images, _ in zip(stream(3), range(2), strict=False)]
trainer, evaluator = Engine(train_step), Engine(validate)
RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
MeanSquaredError().attach(evaluator, "mse")


@trainer.on(Events.ITERATION_COMPLETED(every=10))
def run_validation(engine):
    """Compare the losses of the training and of the validation images."""
    metrics = evaluator.run(validation).metrics
    print(f"{engine.state.iteration} {engine.state.metrics['loss']:.3f} {metrics['mse']:.3f}", flush=True)


trainer.run(stream(2), max_epochs=1, epoch_length=steps)
