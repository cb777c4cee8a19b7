"""Probes of a world model: linear probes of its features, and the ranking quality of its rewards."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from reverie.models import LatentState, Noise
from reverie.workflows.world_models.world_model import WorldModel

RIDGE = 0.1
"""Ridge penalty per sample, for features with a mean variance of 1."""


def held_out_r2(
    features: Sequence[NDArray[np.floating]], targets: Sequence[NDArray[np.floating]]
) -> list[float | None]:
    """Return the fraction of each target's variance that linear probes explain in held-out episodes.

    Each episode is predicted by a probe that was fitted to all other episodes: ridge regression on features
    with a common scale. Separate scales would amplify features that rarely change, and their errors on new
    data.

    Args:
        features: Features of each episode, (N, F), for at least two episodes.
        targets: Targets of each episode, (N, K).

    Returns:
        K coefficients of determination over all episodes: 1 is perfect, 0 is as good as the targets' mean and
        negative values are worse. `None` for constant targets.
    """
    errors = np.zeros(targets[0].shape[1])
    for held in range(len(features)):
        fitted = np.concatenate([each for i, each in enumerate(features) if i != held]).astype(np.float64)
        wanted = np.concatenate([each for i, each in enumerate(targets) if i != held])
        mean, offset = fitted.mean(0), wanted.mean(0)
        scale = 1 / np.sqrt(max(fitted.var(0).mean(), np.finfo(np.float32).tiny))
        inputs = (fitted - mean) * scale
        penalty = RIDGE * len(inputs) * np.eye(inputs.shape[1])
        weights = np.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ (wanted - offset))
        errors += (((features[held] - mean) * scale @ weights + offset - targets[held]) ** 2).sum(0)
    every = np.concatenate(targets)
    spreads = ((every - every.mean(0)) ** 2).sum(0)
    return [round(float(1 - e / s), 4) if s else None for e, s in zip(errors, spreads, strict=True)]


def auc(higher: NDArray[np.floating], lower: NDArray[np.floating]) -> float | None:
    """Return the area under the ROC curve: the probability that a `higher` score exceeds a `lower` score.

    Ties count half. The area equals U / (n m) of Mann and Whitney (1947). `None` if either list is empty.
    """
    if not len(higher) or not len(lower):
        return None
    ordered = np.sort(lower)
    below = np.searchsorted(ordered, higher, "left") + np.searchsorted(ordered, higher, "right")
    return float(below.mean() / 2 / len(lower))


@torch.no_grad()
def imagine_along(
    world_model: WorldModel,
    states: LatentState,
    actions: Float[Tensor, "time action"],
    steps: int,
    noise: Noise,
) -> LatentState:
    """Return the states imagined `steps` steps after each posterior in an episode, with recorded actions.

    Args:
        world_model: The model that imagines.
        states: Posteriors of T records, (T, ...).
        actions: One-hot or bounded actions chosen after each record.
        steps: Number of imagined steps, 0 to T - 1. 0 returns the posteriors.
        noise: Noise source for the imagined latents.

    Returns:
        States (T - steps, ...). Entry i predicts record i + steps from the posterior of record i.
    """
    count = len(actions) - steps
    start, latent_noise = states.select(slice(count)), world_model.rssm.noise(noise, steps, count)
    imagined, _ = world_model.rssm.imagine(start, lambda step, _: actions[step : step + count], latent_noise)
    return imagined[-1]
