"""Cadences and the update ratio, compared with integer arithmetic."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie.utils.schedule import Every, UpdateRatio

INCREMENTS = st.lists(st.integers(0, 40), min_size=1, max_size=60)
NO_CAP = 10**9


@given(interval=st.integers(1, 25), start=st.integers(0, 60), increments=INCREMENTS)
def test_due_exactly_when_a_multiple_was_passed_since_the_last_call(
    interval: int, start: int, increments: list[int]
) -> None:
    due = Every(interval, start)
    before = start
    for step in accumulate(increments, initial=start):
        assert due(step) == any(number % interval == 0 for number in range(before + 1, step + 1))
        before = step


def test_several_multiples_passed_at_once_are_due_once() -> None:
    due = Every(10)
    assert [due(step) for step in (9, 45, 46, 50)] == [False, True, False, True]


def test_a_resumed_cadence_does_not_repeat_what_was_due_at_its_start() -> None:
    due = Every(10, start=20)
    assert [due(step) for step in (20, 29, 30, 31)] == [False, False, True, False]


def test_an_interval_of_zero_is_never_due() -> None:
    due = Every(0)
    assert not any(due(step) for step in range(100))


@given(
    updates=st.integers(1, 20),
    steps=st.integers(1, 20),
    start=st.integers(0, 10_000),
    increments=INCREMENTS,
)
def test_the_updates_are_the_floor_of_the_steps_times_the_ratio_after_every_call(
    updates: int, steps: int, start: int, increments: list[int]
) -> None:
    owed = UpdateRatio(updates / steps, max_owed=NO_CAP)
    assert owed(start) == 1
    total = 0
    for step in accumulate(increments, initial=start):
        total += owed(step)
        assert total == (step - start) * updates // steps


@pytest.mark.parametrize(("updates", "steps"), [(1, 1), (1, 4), (1, 3), (1024, 1100), (10, 3), (7, 9)])
def test_the_ratio_is_exact_after_every_step_of_a_long_run(updates: int, steps: int) -> None:
    start = 1234
    owed = UpdateRatio(updates / steps, max_owed=NO_CAP)
    owed(start)
    total = 0
    off = []
    for step in range(start + 1, 400_000):
        total += owed(step)
        if total != (step - start) * updates // steps:
            off.append(step)
    assert off == []


def test_what_is_beyond_the_cap_is_forgiven() -> None:
    owed = UpdateRatio(0.5, max_owed=4)
    owed(0)
    assert [owed(step) for step in (1000, 1001, 1002, 1004)] == [4, 0, 1, 1]


@given(increments=INCREMENTS, max_owed=st.integers(1, 5))
def test_no_call_returns_more_than_the_cap(increments: list[int], max_owed: int) -> None:
    owed = UpdateRatio(0.75, max_owed)
    assert all(0 <= owed(step) <= max_owed for step in accumulate(increments, initial=100))


@given(increments=INCREMENTS, cut=st.integers(0, 60))
def test_a_ratio_restored_from_its_state_goes_on_as_if_unbroken(increments: list[int], cut: int) -> None:
    steps = list(accumulate(increments, initial=5))
    unbroken = UpdateRatio(0.3, max_owed=8)
    expected = [unbroken(step) for step in steps]
    first, second = UpdateRatio(0.3, max_owed=8), UpdateRatio(0.3, max_owed=8)
    counts = [first(step) for step in steps[:cut]]
    second.load_state_dict(first.state_dict())
    assert counts + [second(step) for step in steps[cut:]] == expected
