"""Classify a series of sizes as flat, plateauing, growing or undecided.

Lines fitted through all points raise false alarms on 15 to 57 % of autocorrelated series, and on all
warm-ups. This test therefore discards the first third and reduces the other samples to 8 block medians that
ignore spikes. It compares the order of the medians: growth means that almost every later block exceeds almost
every earlier one by a tolerance, without slowing down.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MIN_SAMPLES = 24
# Share of the samples discarded as the remains of a warm-up.
_DISCARDED = 1 / 3
_BLOCKS = 8
# Kendall's S, at most 28. Without a trend, S >= 22 has probability 0.0028.
_ORDERED_PAIRS = 22
_UNORDERED_PAIRS = 14
# Number of last blocks in which a late leak is detected.
_RECENT = 5
_RECENT_TOLERANCES = 1.5
# Growth counts as ending if the second half's slope is below this fraction of the first half's slope.
_SLOWING = 0.5
# This is the fraction for a whole history. log n has 0.58, and the square root of n has 0.77.
_SATURATING = 0.75
# The sixth of 28 slopes from either end gives a 96.9 % interval.
_INTERVAL_RANK = 6
# If less than this share of the growth is outside the two intervals with the largest rise, the rest is drift.
_DRIFT = 1 / 64

_Floats = NDArray[np.floating]
Series = Sequence[float] | NDArray[np.number]


class TrendClass(StrEnum):
    """Behavior of a series of sizes, and its cause if known."""

    flat = "flat"
    plateauing = "plateauing"
    growing = "growing"
    leak = "leak"
    collectable = "collectable"
    retention = "allocator retention"
    filling = "filling"
    undecided = "undecided"


@dataclass(frozen=True, slots=True)
class TrendTest:
    """A verdict and its statistics. Fewer than 24 samples give NaN."""

    verdict: TrendClass
    slope_bytes_per_sample: float
    """Median of the 28 slopes between block medians (Theil-Sen), or of 10 slopes for a late leak."""
    interval: tuple[float, float]
    """6th lowest and 6th highest of 28 slopes (Sen, 96.9 %), or lowest and highest of 10 (98.3 %)."""
    rise_bytes: float
    """The slope times its number of samples: all after the discarded third, or the last 5 blocks."""
    kendall_s: int
    """Pairs of blocks in which the later is higher, minus pairs in which it is lower (-28 to 28)."""
    samples: int
    """Length of the series, including the discarded third."""
    low: float = math.nan
    """Lowest block median."""
    last: float = math.nan
    """Last block median."""


def classify_trend(series: Series, tolerance_bytes: float, steps: Series = ()) -> TrendTest:
    """Test whether a series of sizes in bytes grows, and how fast.

    The sizes are sampled at a fixed phase of the loop, minus planned growth, at the given rising steps or at
    equal distances. Slopes are per sample of the mean distance. The series grows if the block medians rise in
    order (Kendall's S of at least 22 of 28) by more than the tolerance. A late leak is also growth: the last
    5 medians all rise, by more than 1.5 tolerances. A single step on a drift is not growth. Growth is
    `plateauing` if the second half's slope is less than half the first half's, else `growing`. A `leak`
    requires more evidence than one series (`MemoryGuard`). A series is `flat` if it stays within the
    tolerance or rises without order, else `undecided`. No verdict uses the interval. It is too narrow under
    strong autocorrelation.

    Raises:
        ValueError: If a value is not finite.

    Reference:
        Sen 1968, "Estimates of the regression coefficient based on Kendall's tau".

    >>> classify_trend([1e6 * sample for sample in range(48)], tolerance_bytes=1e6).verdict.value
    'growing'
    >>> classify_trend([1e9] * 48, tolerance_bytes=1e6).verdict.value
    'flat'
    """
    values = np.asarray(series, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("A series of sizes must be finite. Omit values that could not be read.")
    if len(values) < MIN_SAMPLES:
        return TrendTest(TrendClass.undecided, math.nan, (math.nan, math.nan), math.nan, 0, len(values))
    judged = values[int(len(values) * _DISCARDED) :]
    centres, medians = _block_medians(judged, _positions(steps)[-len(judged) :])
    order = int(np.sign(pair_slopes(centres, medians)).sum())
    slope, interval = _trend(centres, medians, _INTERVAL_RANK)
    rise = slope * len(judged)
    risen, recent = medians, medians[-_RECENT:]
    grew_lately = (np.diff(recent) > 0).all() and np.ptp(recent) > _RECENT_TOLERANCES * tolerance_bytes
    grows = order >= _ORDERED_PAIRS and rise > tolerance_bytes
    if grew_lately and not grows:
        grows, risen = True, recent
        slope, interval = _trend(centres[-_RECENT:], recent, rank=1)
        rise = slope * len(judged) * _RECENT / _BLOCKS
    if grows and not _is_one_step(risen):
        verdict = TrendClass.plateauing if _slope_ratio(centres, medians) < _SLOWING else TrendClass.growing
    else:
        is_still = abs(rise) < tolerance_bytes and np.ptp(medians) < 2 * tolerance_bytes
        is_unordered = order <= _UNORDERED_PAIRS and rise < tolerance_bytes
        verdict = TrendClass.flat if is_still or is_unordered else TrendClass.undecided
    return TrendTest(verdict, slope, interval, rise, order, len(values), medians.min(), medians[-1])


def saturates(history: NDArray[np.float64], steps: Series = ()) -> bool:
    """Return whether the growth of a whole history, of at least 24 samples at these steps, slows down.

    Discarding the first third lets the test distinguish a line, whose halves are equally steep, from log n
    (ratio 0.58).

    >>> [saturates(f(np.arange(1.0, 961.0))) for f in (np.log, np.sqrt, np.positive)]
    [True, False, False]
    """
    judged = history[int(len(history) * _DISCARDED) :]
    return _slope_ratio(*_block_medians(judged, _positions(steps)[-len(judged) :])) < _SATURATING


def _positions(steps: Series) -> _Floats:
    """Return sample positions in units of the mean distance, or an empty array for equal distances."""
    after = np.asarray(steps, dtype=np.float64) - (steps[0] if len(steps) else 0)
    return after * (len(after) - 1) / after[-1] if len(after) else after


def _slope_ratio(centres: _Floats, medians: _Floats) -> float:
    """Return the second half's slope divided by the first half's, or infinity if the first half's is <= 0."""
    half = _BLOCKS // 2
    first = float(np.median(pair_slopes(centres[:half], medians[:half])))
    second = float(np.median(pair_slopes(centres[half:], medians[half:])))
    return second / first if first > 0 else math.inf


def _is_one_step(medians: _Floats) -> bool:
    """Return whether memory was allocated once. A drift of any size would order all blocks."""
    total = np.ptp(medians)
    return bool(total - (medians[2:] - medians[:-2]).max() < _DRIFT * total)


def _trend(centres: _Floats, medians: _Floats, rank: int) -> tuple[float, tuple[float, float]]:
    """Return the median slope between blocks, and the slopes of the given rank from either end."""
    slopes = np.sort(pair_slopes(centres, medians))
    return float(np.median(slopes)), (float(slopes[rank - 1]), float(slopes[-rank]))


def _block_medians(values: _Floats, positions: _Floats) -> tuple[_Floats, _Floats]:
    """Return the centers and the medians of 8 blocks."""
    places = positions if len(positions) else np.arange(float(len(values)))
    edges = [*pairwise(np.linspace(0, len(values), _BLOCKS + 1).astype(int))]
    centres, medians = ([np.median(each[start:end]) for start, end in edges] for each in (places, values))
    return np.array(centres), np.array(medians)


def pair_slopes(places: _Floats, values: _Floats) -> _Floats:
    """Return the slope between each pair of points, such as bytes per sample."""
    earlier, later = np.triu_indices(len(values), 1)
    return (values[later] - values[earlier]) / (places[later] - places[earlier])
