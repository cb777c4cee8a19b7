"""Aggregates over seeds, compared with manual results and with all possible resamples."""

from itertools import product

import numpy as np
import pytest

from reverie.utils.statistics import bootstrap_interval, interquartile_mean


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ([7.0], 7.0),
        # With fewer than four values, all are used.
        ([1.0, 2.0, 6.0], 3.0),
        # The result is (2 + 3) / 2.
        ([10.0, 1.0, 3.0, 2.0], 2.5),
        # A quarter of five is one value at each end.
        ([1.0, 2.0, 3.0, 4.0, 50.0], 3.0),
        ([-90.0, -80.0, 1.0, 2.0, 3.0, 4.0, 500.0, 600.0], 2.5),
    ],
)
def test_the_interquartile_mean_leaves_out_whole_quarters(scores: list[float], mean: float) -> None:
    assert interquartile_mean(np.array(scores)) == mean
    both = np.array([scores, [2 * score for score in scores]])
    assert interquartile_mean(both, axis=1).tolist() == [mean, 2 * mean]
    assert interquartile_mean(both.T).tolist() == [mean, 2 * mean]


def test_the_interval_of_few_seeds_is_what_is_counted_by_hand() -> None:
    # With four seeds, the mean of the middle two is the lowest score if three or four draws are it. That is 4
    # * 3 + 1 = 13 of 256 resamples, or 5.1 %, more than 2.5 %. The same is true of the highest score.
    low, high = bootstrap_interval(np.array([[0.0, 100.0], [4.0, 104.0], [8.0, 108.0], [12.0, 112.0]]))
    assert (low.tolist(), high.tolist()) == ([0.0, 100.0], [12.0, 112.0])
    # With three seeds, the mean is the lowest score in 1 of 27 resamples, or 3.7 %.
    assert bootstrap_interval(np.array([0.0, 3.0, 6.0])) == (0.0, 6.0)
    assert bootstrap_interval(np.array([5.0])) == (5.0, 5.0)


def test_the_interval_of_six_seeds_is_that_of_all_resamples() -> None:
    scores = np.array([0.0, 1.0, 5.0, 6.0, 8.0, 20.0])
    # These are 46,656 resamples.
    every = interquartile_mean(np.array(list(product(scores, repeat=6))), axis=1)
    assert np.allclose(bootstrap_interval(scores), np.percentile(every, [2.5, 97.5]), atol=0.5)
