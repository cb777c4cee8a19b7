"""Regression with JAX and Optax: a small network learns a noisy function."""

import argparse
import queue
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1_200, help="optimizer steps")
optimizer = optax.adam(1e-3)


def predict(params, x):
    """Return the output of the network."""
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]


@jax.jit
def huber_loss(params, x, y, delta):
    """Return the mean Huber loss."""
    return optax.huber_loss(predict(params, x), y, delta=delta).mean()


@jax.jit
def compute_updates(params, state, x, y):
    """Return the updates of the parameters, the state of the optimizer, and the error of each sample."""
    updates, state = optimizer.update(jax.grad(huber_loss)(params, x, y, 1.0), state, params)
    return updates, state, predict(params, x) - y


def log_errors(results):
    """Print the mean of the errors now and then, in a thread, so that training does not wait for it."""
    while True:
        step, errors = results.get()
        if step % 100 == 0:
            print(f"{step} mean error {np.abs(np.asarray(errors)).mean():.3f}", flush=True)


def train(params, steps):
    """Train with random samples, and evaluate an annealed loss."""
    results = queue.Queue()
    threading.Thread(target=log_errors, args=(results,), daemon=True).start()
    random, state = np.random.default_rng(1), optimizer.init(params)
    for step in range(steps):
        x = random.standard_normal((4_096, 8)).astype(np.float32)
        y = np.sin(x).sum(1)
        updates, state, errors = compute_updates(params, state, x, y)
        params = optax.apply_updates(params, updates)
        results.put((step, errors))
        if step % 10 == 0:
            print(f"{step} {huber_loss(params, x, y, 0.999**step):.3f}", flush=True)
        time.sleep(0.04)


train({"w1": jnp.eye(8, 32), "b1": jnp.linspace(-1, 1, 32), "w2": jnp.zeros(32)}, parser.parse_args().steps)
