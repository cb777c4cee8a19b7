"""Variational inference with Pyro: factors of minibatches, shown on a dashboard now and then."""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=800, help="minibatches")
steps = parser.parse_args().steps
FACTORS, FEATURES, BATCH = 8, 32, 64


class Encoder(torch.nn.Module):
    """Guesses the factors of a row."""

    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(FEATURES, 32)
        self.loc, self.log_scale = torch.nn.Linear(32, FACTORS), torch.nn.Linear(32, FACTORS)

    def forward(self, rows):
        """Return the mean and the scale of the factors."""
        hidden = self.hidden(rows).tanh()
        return self.loc(hidden), self.log_scale(hidden).exp()


def model(number, rows):
    """Rows are sums of a few factors."""
    loadings = pyro.param("loadings", lambda: torch.randn(FACTORS, FEATURES))
    with pyro.plate("rows", len(rows)):
        factors = pyro.sample("factors", dist.Normal(torch.zeros(len(rows), FACTORS), 1).to_event(1))
        pyro.sample("observed", dist.Normal(factors @ loadings, 0.5).to_event(1), obs=rows)


def guide(number, rows):
    """The encoder guesses the factors."""
    pyro.module("encoder", encoder)
    loc, scale = encoder(rows)
    with pyro.plate("rows", len(rows)):
        pyro.sample("factors", dist.Normal(loc, scale).to_event(1))


def publish(number, samples):
    """Send the posterior to the slow dashboard."""
    time.sleep(1)
    print(f"{number} spread of the factors {samples.std(0).mean():.3f}", flush=True)


def train():
    """Learn from a stream of minibatches."""
    elbo = Trace_ELBO()
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo)
    truth, held_out, smooth, sent = torch.randn(FACTORS, FEATURES), torch.randn(BATCH, FEATURES), 0.0, None
    for number in range(steps):
        rows = torch.randn(BATCH, FACTORS) @ truth + 0.5 * torch.randn(BATCH, FEATURES)
        svi.step(number, rows)
        smooth = 0.99 * smooth + 0.01 * svi.evaluate_loss(number, held_out)
        with torch.no_grad():
            samples = dist.Normal(*encoder(rows)).sample([32])
        if sent is None or sent.done():
            sent = pool.submit(publish, number, samples)
        time.sleep(0.06)
    print(f"smooth loss {smooth:.1f}")


torch.set_num_threads(1)
pyro.set_rng_seed(1)
encoder, pool = Encoder(), ThreadPoolExecutor(1)
train()
pool.shutdown(cancel_futures=True)
