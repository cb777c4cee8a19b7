"""Optuna searches for the size and the rate of small NumPy networks, with a new study for each data set."""

import argparse
import logging
import time

import numpy as np
import optuna

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=900, help="trials")
TRIALS = 20


class Failures(logging.Handler):
    """Remembers why trials of a study failed."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.records = []

    def emit(self, record):
        """Remember a warning of Optuna."""
        self.records.append(record)


class Network:
    """A network with one hidden layer, trained by gradient descent."""

    def __init__(self, hidden, rate):
        self.first = np.random.standard_normal((64, hidden)) / 8
        self.second = np.random.standard_normal(hidden) / np.sqrt(hidden)
        self.rate = rate

    def improve(self, X, y):
        """Take a step, and return the loss before it."""
        active = np.maximum(X @ self.first, 0)
        error = active @ self.second - y
        slope = np.outer(error, self.second) * (active > 0)
        self.second -= self.rate * active.T @ error / len(y)
        self.first -= self.rate * X.T @ slope / len(y)
        loss = float((error**2).mean())
        if loss > 1e3:
            raise FloatingPointError(f"diverged at rate {self.rate:.3g}")
        return loss


def make_objective(rows=128):
    """Return a function that trains a network on new data."""
    X = np.random.standard_normal((rows, 64))

    def objective(trial):
        size, rate = trial.suggest_int("size", 8, 64), trial.suggest_float("rate", 1e-3, 1, log=True)
        network = Network(size, rate)
        y = np.sin(X[:, 0]) + X[:, 1]
        for epoch in range(10):
            trial.report(network.improve(X, y), epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        trial.set_user_attr("weights", network.first.tolist())
        return network.improve(X, y)

    return objective


np.random.seed(1)
optuna.logging.set_verbosity(optuna.logging.WARNING)
optuna.logging.disable_default_handler()
failures = Failures()
logging.getLogger("optuna").addHandler(failures)
objective = make_objective()
for number in range(parser.parse_args().steps // TRIALS):
    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_warmup_steps=3))
    pause = [lambda *_: time.sleep(0.05)]
    study.optimize(objective, n_trials=TRIALS, callbacks=pause, catch=ArithmeticError, gc_after_trial=True)
    print(f"{number} best {study.best_value:.3f}, {len(failures.records)} failed", flush=True)
    failures.records.clear()
