"""Aggregate scores over seeds or tasks: interquartile mean, optimality gap, profiles, bootstrap interval.

Reference:
    Agarwal et al. 2021, arXiv:2108.13264, "Deep Reinforcement Learning at the Edge of the
    Statistical Precipice".
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_SEEDS = 4
"""Fewest seeds for an interquartile mean. With fewer, no seed is cut, so the result is the plain mean."""

_RESAMPLES = 2000
_PERCENTILES = (2.5, 97.5)


def interquartile_mean(scores: NDArray[np.float64], axis: int = 0) -> NDArray[np.float64]:
    """Return the mean along an axis without the lowest and highest quarters, each rounded down.

    >>> float(interquartile_mean(np.array([1.0, 2.0, 4.0, 100.0])))
    3.0
    """
    ordered = np.sort(np.moveaxis(scores, axis, 0), axis=0)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut].mean(axis=0)


def optimality_gap(scores: NDArray[np.float64], target: float) -> float:
    """Return the mean amount by which scores fall short of a target. Scores above it count as the target.

    >>> optimality_gap(np.array([0.5, 1.0, 3.0]), target=1.5)
    0.5
    """
    return float(target - np.minimum(scores, target).mean())


def performance_profile(
    scores: NDArray[np.float64], thresholds: NDArray[np.float64], axis: int = 0
) -> NDArray[np.float64]:
    """Return the share of scores above each threshold, with the thresholds as the last axis.

    >>> performance_profile(np.array([1.0, 2.0, 4.0, 4.0]), np.array([0.0, 2.0, 4.0])).tolist()
    [1.0, 0.5, 0.0]
    """
    return (scores[..., None] > thresholds).mean(axis=axis)


def bootstrap_interval(
    scores: NDArray[np.float64], statistic: Callable[..., Any] = interquartile_mean
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both ends of a statistic's 95 % bootstrap percentile interval.

    Rows are resampled with replacement 2,000 times. The generator has a fixed seed, so results are
    deterministic.

    Args:
        scores: (seeds, ...) one row per seed of a group (stratum), or one per task.
        statistic: Function of scores and `axis`, such as `np.median`.

    Returns:
        Two arrays (...), the lower and upper ends. For a single seed, the interval has width 0.
    """
    drawn = np.random.default_rng(0).integers(len(scores), size=(_RESAMPLES, len(scores)))
    low, high = np.percentile(statistic(scores[drawn], axis=1), _PERCENTILES, axis=0)
    return low, high
