"""Snapshots are matched with the run's TensorBoard logs."""

from pathlib import Path

import numpy as np
import pytest
from heapwatch import UsageError
from heapwatch.snapshots.reader import Summary, summarize
from heapwatch.snapshots.series import ALLOCATED_TAG, RESERVED_TAG, correlate, correlation

from . import writer


def series(*megabytes: int) -> list[Summary]:
    """Return snapshots 1,000 steps apart, with `megabytes` in one tensor and 10 MB more in the cache."""
    summaries = []
    for index, size in enumerate(megabytes):
        active = writer.segment([writer.block(size * 1_000_000)], small=False)
        cached = writer.segment([writer.block(10_000_000, state="inactive")], small=False)
        summaries.append(summarize(writer.snapshot([active, cached]), Path("made.pickle"), 1_000 * index))
    return summaries


def test_equal_steps_are_joined_and_the_largest_difference_is_named(tmp_path: Path) -> None:
    logged = {
        0: {ALLOCATED_TAG: 0.1, RESERVED_TAG: 0.11},
        1_000: {ALLOCATED_TAG: 0.25, RESERVED_TAG: 0.21},
        2_000: {ALLOCATED_TAG: 0.3, RESERVED_TAG: 0.31},
    }
    allocated, reserved = correlate(series(100, 200, 300), writer.log(tmp_path, logged))
    assert allocated.tag == ALLOCATED_TAG
    assert allocated.largest_difference_gb == pytest.approx(0.05)
    assert allocated.pearson_r == pytest.approx(np.corrcoef([0.1, 0.2, 0.3], [0.1, 0.25, 0.3])[0, 1])
    assert allocated.largest_distance_steps == 0
    assert reserved.pearson_r == pytest.approx(1)
    assert reserved.largest_difference_gb == pytest.approx(0, abs=1e-6)


def test_a_snapshot_between_two_logged_steps_takes_the_nearest(tmp_path: Path) -> None:
    logged = {step: {ALLOCATED_TAG: float(step)} for step in (400, 700, 1_300, 9_000)}
    (joined,) = correlate(series(1, 1, 1), writer.log(tmp_path, logged))
    # The distance is between 2,000 and 1,300.
    assert joined.largest_distance_steps == 700
    assert joined.largest_difference_gb == pytest.approx(1_300 - 0.001)
    held = {0: 0.0, 1_000: 0.0}
    assert correlation("tag", held, logged_gb={0: 0.0, 700: 3.0, 1_300: 9.0}).largest_difference_gb == 3


def test_every_logged_point_is_read_and_of_a_step_the_last(tmp_path: Path) -> None:
    writer.log(tmp_path, {step: {ALLOCATED_TAG: step / 1e4} for step in range(12_000)})
    writer.log(tmp_path, {1_000: {ALLOCATED_TAG: 7.0}})
    (joined,) = correlate(series(1, 1, 1), tmp_path)
    assert joined.largest_distance_steps == 0
    assert joined.largest_difference_gb == pytest.approx(7.0 - 0.001)


@pytest.mark.parametrize(
    ("x", "y", "r"),
    [
        ([1, 2, 3], [2, 4, 6], 1),
        ([1, 2, 3], [3, 2, 1], -1),
        ([1, 2, 3], [5, 5, 5], None),
        ([1, 2], [1, 2], None),
    ],
)
def test_a_correlation_is_given_only_where_it_is_defined(
    x: list[float], y: list[float], r: float | None
) -> None:
    assert correlation("tag", dict(enumerate(x)), dict(enumerate(y))).pearson_r == pytest.approx(r)


def test_a_single_snapshot_has_a_difference_but_no_correlation() -> None:
    alone = correlation("tag", {5: 1.0}, {7: 1.5})
    assert (alone.pearson_r, alone.largest_difference_gb, alone.largest_distance_steps) == (None, 0.5, 2)


def test_folders_without_the_scalars_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--events-dir .*missing is not a readable folder"):
        correlate(series(1), tmp_path / "missing")
    nothing = f"has no TensorBoard events with {ALLOCATED_TAG} or {RESERVED_TAG}"
    with pytest.raises(UsageError, match=nothing):
        correlate(series(1), tmp_path)
    writer.log(tmp_path, {1: {"train/loss": 1.0}})
    with pytest.raises(UsageError, match=nothing):
        correlate(series(1), tmp_path)


def test_a_file_that_is_no_event_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1.a").write_bytes(b"not events at all, but bytes" * 9)
    with pytest.raises(UsageError, match=r"--events-dir .* has no TensorBoard events"):
        correlate(series(1), tmp_path)
