"""Online regression with GPyTorch: a window slides over a noisy signal, and the next values are forecast."""

import argparse
import math
import time
from collections import deque

import gpytorch
import torch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=600, help="observations")
AHEAD = 32


class SeasonalMean(gpytorch.means.Mean):
    """A weighted sum of sines and cosines of the time."""

    def __init__(self, waves=16):
        super().__init__()
        self.register_buffer("frequencies", torch.arange(1, waves + 1) / 4)
        self.register_parameter("weights", torch.nn.Parameter(torch.zeros(2 * waves)))

    def basis(self, times):
        """Return the values of all waves."""
        angles = times * self.frequencies
        return torch.cat([angles.sin(), angles.cos()], -1)

    def forward(self, times):
        """Return the mean at these times."""
        return self.basis(times) @ self.weights


class SignalGP(gpytorch.models.ExactGP):
    """A smooth signal around a seasonal mean."""

    def __init__(self):
        super().__init__(None, None, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = SeasonalMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))

    def forward(self, times):
        """Return the prior at these times."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(times), self.covar_module(times))


class Forecast:
    """Paths that the signal may take next."""

    def __init__(self, posterior):
        self.paths = posterior.sample(torch.Size([256]))

    def error(self, values):
        """Return the mean error of the median path."""
        return float((self.paths.median(0).values - torch.tensor(values)).abs().mean())


torch.set_num_threads(1)
torch.manual_seed(1)
model = SignalGP()
mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
values, forecasts = deque(maxlen=80), deque(maxlen=AHEAD + 1)
for number in range(parser.parse_args().steps):
    values.append(math.sin(number / 10) + 0.1 * float(torch.randn(())))
    times = torch.arange(number + 1 - len(values), number + 1)[:, None] / 20
    model.set_train_data(times, torch.tensor(values), strict=False)
    model.train()
    optimizer.zero_grad()
    (-mll(model(times), model.train_targets)).backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        forecast = Forecast(model.likelihood(model(times[-1] + torch.arange(1, AHEAD + 1)[:, None] / 20)))
    forecasts.append(forecast)
    if number % 100 == 99:
        print(f"{number} error {forecasts[-1 - AHEAD].error(list(values)[-AHEAD:]):.3f}", flush=True)
    time.sleep(0.08)
