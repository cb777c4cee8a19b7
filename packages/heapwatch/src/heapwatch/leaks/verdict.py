"""Classify a series of sizes as flat, plateauing, growing, or undecided.

Autocorrelation alone gives lines through all points 15 to 57 % false alarms, and any warm-up 100 %. So the
first third is discarded, the rest becomes 8 block medians, which spikes do not move, and what counts is their
order: does nearly every later block exceed nearly every earlier one by a tolerance, without slowing down?
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MIN_SAMPLES = 24
_DISCARDED = 1 / 3  # of the samples: what is left of a warm-up
_BLOCKS = 8
_ORDERED_PAIRS = 22  # Kendall's S of 28; by chance S >= 22 has probability 0.0028, if no order is likelier
_UNORDERED_PAIRS = 14
_RECENT = 5  # blocks that may show a leak that began late
_RECENT_TOLERANCES = 1.5
_SLOWING = 0.5  # second half's slope over the first half's, below which growth is dying out
_SATURATING = 0.75  # the same for a history from the beginning: log n has 0.58, the square root of n 0.77
_INTERVAL_RANK = 6  # 6th of 28 slopes from either end: 96.9 %

_Floats = NDArray[np.floating]
Series = Sequence[float] | NDArray[np.number]


class TrendClass(StrEnum):
    """What a series of sizes does, and where that is known, why."""

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
    """A verdict and the numbers it rests on; the numbers are NaN for fewer than 24 samples."""

    verdict: TrendClass
    slope_bytes_per_sample: float
    """Median of the 28 slopes between block medians (Theil-Sen); of the 10 of the last 5 for a late leak."""
    interval: tuple[float, float]
    """6th lowest and 6th highest of the 28 slopes (Sen, 96.9 %); lowest and highest of 10 (98.3 %)."""
    rise_bytes: float
    """The slope times the samples it is of: those after the discarded third, or the last 5 blocks."""
    kendall_s: int
    """Pairs of blocks of which the later is higher, less those of which it is lower; -28 to 28."""
    samples: int
    """Length of the series, the discarded third included."""


def classify_trend(series: Series, tolerance_bytes: float, steps: Series = ()) -> TrendTest:
    """Return whether a series of sizes in bytes grows, and how fast.

    The sizes are read at one fixed phase of the loop, less what is planned to grow, at these rising steps;
    without steps, at equal distances. Slopes are per sample of the mean distance. The series grows if the
    block medians rise in order (Kendall's S of at least 22 of 28) by more than the tolerance, or if the last
    5 all rise, by more than 1.5 tolerances: a leak that began late. Growth is `plateauing` where the second
    half's slope is less than half the first half's, else `growing`; a `leak` takes more than a series
    (`MemoryGuard`). A series is `flat` if it stays within the tolerance, or rises in no order; else
    `undecided`. No verdict uses the interval: strong autocorrelation widens the truth.

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
        raise ValueError("A series of sizes must be finite; leave out what could not be read.")
    if len(values) < MIN_SAMPLES:
        return TrendTest(TrendClass.undecided, math.nan, (math.nan, math.nan), math.nan, 0, len(values))
    judged = values[int(len(values) * _DISCARDED) :]
    centres, medians = _block_medians(judged, _positions(steps)[-len(judged) :])
    order = int(np.sign(pair_slopes(centres, medians)).sum())
    slope, interval = _trend(centres, medians, _INTERVAL_RANK)
    rise = slope * len(judged)
    recent = medians[-_RECENT:]
    grew_lately = (np.diff(recent) > 0).all() and np.ptp(recent) > _RECENT_TOLERANCES * tolerance_bytes
    grows = order >= _ORDERED_PAIRS and rise > tolerance_bytes
    if grew_lately and not grows:
        grows = True
        slope, interval = _trend(centres[-_RECENT:], recent, rank=1)
        rise = slope * len(judged) * _RECENT / _BLOCKS
    if grows:
        verdict = TrendClass.plateauing if _slope_ratio(centres, medians) < _SLOWING else TrendClass.growing
    else:
        is_still = abs(rise) < tolerance_bytes and np.ptp(medians) < 2 * tolerance_bytes
        is_unordered = order <= _UNORDERED_PAIRS and rise < tolerance_bytes
        verdict = TrendClass.flat if is_still or is_unordered else TrendClass.undecided
    return TrendTest(verdict, slope, interval, rise, order, len(values))


def saturates(history: NDArray[np.float64], steps: Series = ()) -> bool:
    """Return whether the growth of a whole history, of at least 24 samples at these steps, slows down.

    Less its first third, it tells a line, of which both halves are equally steep, from log n (ratio 0.58).

    >>> [saturates(f(np.arange(1.0, 961.0))) for f in (np.log, np.sqrt, np.positive)]
    [True, False, False]
    """
    judged = history[int(len(history) * _DISCARDED) :]
    return _slope_ratio(*_block_medians(judged, _positions(steps)[-len(judged) :])) < _SATURATING


def _positions(steps: Series) -> _Floats:
    """Return where samples lie, in samples of the mean distance; empty if they lie at equal distances."""
    after = np.asarray(steps, dtype=np.float64) - (steps[0] if len(steps) else 0)
    return after * (len(after) - 1) / after[-1] if len(after) else after


def _slope_ratio(centres: _Floats, medians: _Floats) -> float:
    """Return the second half's slope over the first half's; infinite where the first half does not rise."""
    half = _BLOCKS // 2
    first = float(np.median(pair_slopes(centres[:half], medians[:half])))
    second = float(np.median(pair_slopes(centres[half:], medians[half:])))
    return second / first if first > 0 else math.inf


def _trend(centres: _Floats, medians: _Floats, rank: int) -> tuple[float, tuple[float, float]]:
    """Return the median of the slopes between blocks, and the slopes of that rank from either end."""
    slopes = np.sort(pair_slopes(centres, medians))
    return float(np.median(slopes)), (float(slopes[rank - 1]), float(slopes[-rank]))


def _block_medians(values: _Floats, positions: _Floats) -> tuple[_Floats, _Floats]:
    """Return the middle and the median of each of 8 blocks."""
    places = positions if len(positions) else np.arange(float(len(values)))
    edges = [*pairwise(np.linspace(0, len(values), _BLOCKS + 1).astype(int))]
    centres, medians = ([np.median(each[start:end]) for start, end in edges] for each in (places, values))
    return np.array(centres), np.array(medians)


def pair_slopes(places: _Floats, values: _Floats) -> _Floats:
    """Return the slope between every two points, such as bytes per sample."""
    earlier, later = np.triu_indices(len(values), 1)
    return (values[later] - values[earlier]) / (places[later] - places[earlier])
