"""What a world model knows: linear probes of its features, and how well it ranks rewards."""

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ...models import LatentState, Noise
from .world_model import WorldModel

RIDGE = 1e-2
"""Penalty of a probe's weights, for each sample, where features have a mean variance of 1."""


def held_out_r2(
    features: tuple[NDArray[np.floating], NDArray[np.floating]],
    targets: tuple[NDArray[np.floating], NDArray[np.floating]],
) -> NDArray[np.float64]:
    """Return the share of each target's variance that a linear probe explains on data it was not fitted to.

    The probe is ridge regression on features of one common scale: a scale for each would blow up those that
    hardly ever change, and with them the error on data that has more of them.

    Args:
        features: (N, F) to fit to, (M, F) held out.
        targets: (N, K) and (M, K).

    Returns:
        (K,) coefficients of determination: 1 is perfect, 0 as good as the mean of the held-out targets, less
        is worse than that.
    """
    fitted = features[0].astype(np.float64)
    mean = fitted.mean(0)
    scale = 1 / np.sqrt(fitted.var(0).mean())
    inputs = [(each - mean) * scale for each in (fitted, features[1])]
    offset = targets[0].mean(0)
    penalty = RIDGE * len(fitted) * np.eye(fitted.shape[1])
    weights = np.linalg.solve(inputs[0].T @ inputs[0] + penalty, inputs[0].T @ (targets[0] - offset))
    error = ((inputs[1] @ weights + offset - targets[1]) ** 2).sum(0)
    return 1 - error / ((targets[1] - targets[1].mean(0)) ** 2).sum(0)


def auc(higher: NDArray[np.floating], lower: NDArray[np.floating]) -> float | None:
    """Return how often a score of `higher` exceeds one of `lower`, ties half: the area under the ROC curve.

    None if one of them is empty. This is U / (n m) of Mann and Whitney (1947).
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
    """Return the states imagined `steps` steps after each posterior of an episode, along its own actions.

    Args:
        world_model: Imagines.
        states: Posteriors of T records, (T, ...).
        actions: One-hot or bounded actions chosen after each record.
        steps: Imagined steps, 0 to T - 1; 0 returns the posteriors.
        noise: Of the imagined latents.

    Returns:
        (T - steps, ...): entry i is what is believed of record i + steps, of which nothing was seen.
    """
    count = len(actions) - steps
    start, latent_noise = states.select(slice(count)), world_model.rssm.noise(noise, steps, count)
    imagined, _ = world_model.rssm.imagine(start, lambda step, _: actions[step : step + count], latent_noise)
    return imagined[-1]
