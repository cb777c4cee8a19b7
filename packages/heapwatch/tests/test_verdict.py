"""The verdict's statistics agree with exact counts, slow references and series of known slope."""

import itertools
import math

import numpy as np
import pytest
from heapwatch.leaks.verdict import MIN_SAMPLES, TrendClass, classify_trend, saturates

KB, MB = 1e3, 1e6


def pairs(centres: list[float], medians: list[float]) -> list[float]:
    points = zip(centres, medians, strict=True)
    return sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2))


def slow_slopes(series: list[float]) -> list[float]:
    judged = series[len(series) // 3 :]
    size = len(judged) // 8
    blocks = [sorted(judged[start * size : (start + 1) * size]) for start in range(8)]
    medians = [(block[(size - 1) // 2] + block[size // 2]) / 2 for block in blocks]
    return pairs([(size - 1) / 2 + size * index for index in range(8)], medians)


def test_a_straight_line_is_a_leak_with_its_slope() -> None:
    judgement = classify_trend([5e9 + 20 * KB * sample for sample in range(96)], tolerance_bytes=0.25 * MB)
    assert judgement.verdict is TrendClass.growing
    assert judgement.slope_bytes_per_sample == pytest.approx(20 * KB)
    assert judgement.interval == pytest.approx((20 * KB, 20 * KB))
    # These are the 64 samples after the first third.
    assert judgement.rise_bytes == pytest.approx(64 * 20 * KB)
    assert judgement.kendall_s == 28
    assert judgement.samples == 96


def test_slope_and_interval_are_order_statistics_of_the_slopes_between_blocks() -> None:
    series = [*np.random.default_rng(3).normal(0, MB, 96) + 30 * KB * np.arange(96)]
    judgement, slopes = classify_trend(series, MB), slow_slopes(series)
    assert len(slopes) == 28
    assert judgement.slope_bytes_per_sample == pytest.approx((slopes[13] + slopes[14]) / 2)
    assert judgement.interval == pytest.approx((slopes[5], slopes[22]))
    assert judgement.kendall_s == sum(int(math.copysign(1, slope)) for slope in slopes)


def test_the_stated_probabilities_are_those_of_all_orders_of_eight_blocks() -> None:
    # Number of permutations by inversions, where S = 28 - 2 * inversions.
    inversions = np.eye(1, 29, dtype=int)[0]
    for size in range(2, 9):
        inversions = np.convolve(inversions, np.ones(size, int))[:29]
    assert inversions.sum() == math.factorial(8)
    s = 28 - 2 * np.arange(29)
    assert inversions[s >= 22].sum() / math.factorial(8) == pytest.approx(0.0028, abs=0.00005)
    # The 6th slope from an end exceeds the true slope if at most 5 slopes do not, so S is at least 18.
    assert 1 - 2 * inversions[s >= 18].sum() / math.factorial(8) == pytest.approx(0.969, abs=0.0005)


def test_the_interval_holds_the_true_slope_as_often_as_it_says() -> None:
    rng, series = np.random.default_rng(0), 2000
    hits = 0
    for _ in range(series):
        low, high = classify_trend(rng.normal(0, MB, 96) + 30 * KB * np.arange(96), MB).interval
        hits += low <= 30 * KB <= high
    assert hits / series == pytest.approx(0.969, abs=3 * math.sqrt(0.969 * 0.031 / series))


def test_growth_that_slows_to_less_than_half_is_plateauing() -> None:
    samples = np.arange(96)
    assert classify_trend(100 * MB * (1 - np.exp(-samples / 24)), MB).verdict is TrendClass.plateauing
    assert classify_trend(100 * MB * samples, MB).verdict is TrendClass.growing


def test_a_leak_that_is_sampled_more_and_more_often_is_growing_by_its_steps() -> None:
    # A stalling program has fewer steps between samples.
    steps = np.cumsum(np.linspace(20, 1, 96)).astype(int)
    history = 100.0 * KB * steps
    assert classify_trend(history, MB).verdict is TrendClass.plateauing
    assert saturates(history)
    judgement = classify_trend(history, MB, steps)
    assert judgement.verdict is TrendClass.growing
    assert judgement.slope_bytes_per_sample == pytest.approx(100 * KB * np.diff(steps).mean())
    assert not saturates(history, steps)


def test_a_leak_that_begins_late_is_found() -> None:
    # Growth starts at sample 60. The last 5 of the 8 blocks start at sample 56.
    series = 500 * KB * np.maximum(0, np.arange(96) - 60)
    judgement = classify_trend(series, 3 * MB)
    assert judgement.verdict is TrendClass.growing
    # There are ties before the growth starts.
    assert judgement.kendall_s < 28
    later = 500 * KB * np.maximum(0, np.arange(96) - 62) + np.where(np.arange(96) < 56, 40 * MB, 0)
    # The level is lower than before, but rising.
    judgement = classify_trend(later, 3 * MB)
    assert judgement.verdict is TrendClass.growing
    assert judgement.kendall_s < 22
    assert judgement.slope_bytes_per_sample == pytest.approx(500 * KB, rel=0.05)
    assert judgement.interval[0] < 500 * KB <= judgement.interval[1]
    assert judgement.rise_bytes == pytest.approx(40 * judgement.slope_bytes_per_sample)


def test_falling_memory_is_flat() -> None:
    assert classify_trend(1e9 - MB * np.arange(96), MB).verdict is TrendClass.flat


def test_steps_within_the_tolerance_are_flat_and_the_same_steps_over_it_a_leak() -> None:
    # That is 80 KB over the judged samples.
    series = np.repeat(np.arange(12), 8) * 10 * KB
    assert classify_trend(series, 100 * KB).verdict is TrendClass.flat
    assert classify_trend(series, 50 * KB).verdict is TrendClass.growing


def test_a_single_step_up_is_no_leak() -> None:
    for at in range(1, 95):
        series = np.where(np.arange(96) < at, 0, 50 * MB)
        assert classify_trend(series, MB).verdict is not TrendClass.growing, f"step at {at}"
        # The measurement itself may keep a little memory.
        drifting = series + KB * np.arange(96)
        assert classify_trend(drifting, MB).verdict is not TrendClass.growing, f"step at {at}"


def test_two_steps_up_are_growth() -> None:
    series = np.select([np.arange(96) < 48, np.arange(96) < 80], [0, 8 * MB], 16 * MB) + KB * np.arange(96)
    assert classify_trend(series, MB).verdict is TrendClass.growing


def test_too_few_samples_are_undecided_and_have_no_slope() -> None:
    judgement = classify_trend([MB * sample for sample in range(MIN_SAMPLES - 1)], MB)
    assert judgement.verdict is TrendClass.undecided
    assert math.isnan(judgement.slope_bytes_per_sample)
    assert judgement.samples == 23
    assert classify_trend([MB * sample for sample in range(MIN_SAMPLES)], MB).verdict is TrendClass.growing


def test_the_unit_and_the_level_do_not_matter() -> None:
    series = np.random.default_rng(1).normal(0, 1, 120).cumsum()
    small, large = classify_trend(series, 3.0), classify_trend(1e12 + series * 1e6, 3e6)
    assert small.verdict is large.verdict
    assert large.slope_bytes_per_sample == pytest.approx(small.slope_bytes_per_sample * 1e6)


def test_a_counter_that_could_not_be_read_is_not_judged() -> None:
    with pytest.raises(ValueError, match="must be finite"):
        classify_trend([1.0] * 30 + [math.nan], 1.0)
