"""A skorch classifier that learns from a stream of chunks with partial_fit, and watches its hardest rows."""

import argparse
import time
from collections import deque

import numpy as np
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from skorch.dataset import Dataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=2_400, help="optimizer steps")
steps = parser.parse_args().steps


class Scaled(Dataset):
    """The rows of a chunk, scaled by its spread."""

    def spread(self):
        """Return the standard deviation of each feature."""
        return self.X.std(axis=0) + 1e-6

    def transform(self, X, y):
        """Return a scaled row and its label."""
        return super().transform(X / self.spread(), y)


class Hardest(Callback):
    """Keeps the row of each batch that was least expected."""

    def __init__(self):
        self.rows = deque(maxlen=64)

    def on_batch_end(self, net, batch=None, training=None, y_pred=None, **kwargs):
        """Look at the predictions for a batch."""
        X, y = batch
        worst = int(y_pred.detach().gather(1, y[:, None]).argmin())
        self.rows.append(X[worst].clone())


class Gradients(Callback):
    """Records the gradient of the first layer."""

    def on_grad_computed(self, net, named_parameters, **kwargs):
        """Add the gradient to the history."""
        name, weight = next(iter(named_parameters))
        net.history.record_batch(name, weight.grad.numpy().copy())


def stream(random, rows=128, features=48):
    """Yield chunks. Their classes drift slowly."""
    centers = random.standard_normal((4, features))
    while True:
        centers += 0.01 * random.standard_normal(centers.shape)
        y = random.integers(0, 4, rows)
        X = centers[y] + 2 * random.standard_normal((rows, features))
        yield X.astype(np.float32), y


torch.set_num_threads(1)
torch.manual_seed(1)
module = torch.nn.Sequential(
    torch.nn.Linear(48, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4), torch.nn.Softmax(-1)
)
hardest = Hardest()
net = NeuralNetClassifier(
    module,
    optimizer=torch.optim.Adam,
    lr=1e-3,
    max_epochs=1,
    batch_size=32,
    train_split=None,
    verbose=0,
    dataset=Scaled,
    classes=[0, 1, 2, 3],
    callbacks=[hardest, Gradients()],
)
for number, (X, y) in zip(range(steps // 4), stream(np.random.default_rng(1)), strict=False):
    net.partial_fit(X, y)
    if number % 50 == 49:
        print(f"{number} {net.history_[-1, 'train_loss']:.3f} {hardest.rows[-1].norm():.2f}", flush=True)
        del net.history_[:-1]
    time.sleep(0.08)
