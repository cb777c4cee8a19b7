"""`no_growth` and `budget` as decorator, marker, fixture and context manager."""

import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from heapwatch import UsageError, budget, no_growth
from heapwatch.checks import MemoryGrows

KEPT: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_kept() -> Any:
    yield
    KEPT.clear()


def leak() -> None:
    KEPT.append(np.empty(20_000))


def test_growth_with_the_calls_fails_with_bytes_a_call_and_the_holder() -> None:
    with pytest.raises(MemoryGrows, match=r"leak leaves \+160,[0-9]{3} bytes per call") as raised:
        no_growth(steps=24)(leak)()
    assert re.search(rf"{__name__}\.KEPT \(list, \d+ arrays, test_checks.py:\d+\) grows", str(raised.value))


def test_a_container_below_its_capacity_is_no_growth() -> None:
    recent = deque[np.ndarray](maxlen=1_000)
    no_growth(steps=24)(lambda: recent.append(np.empty(20_000)))()
    assert len(recent) == 36


def test_the_fixture_checks_a_function(no_growth: Callable[..., Any]) -> None:
    assert no_growth(lambda value: value + 1, 41, steps=24) == 42
    with pytest.raises(MemoryGrows):
        no_growth(leak, steps=24)


CALLS: list[int] = []


@pytest.mark.no_growth(steps=24)
def test_a_marked_test_runs_often() -> None:
    CALLS.append(1)


def test_the_marker_has_called_it_with_its_warm_up() -> None:
    assert len(CALLS) == 36


@pytest.mark.no_growth(steps=24)
def test_captured_log_records_are_no_growth(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger(__name__).warning("w" * 20_000)
    assert len(caplog.records) == 1


def test_too_few_calls_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 24"):
        no_growth(steps=3)


@pytest.mark.parametrize("call", [lambda: no_growth(leak, steps=50), lambda: no_growth(leak)])  # pyright: ignore
def test_a_function_in_the_place_of_the_numbers_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match=r"Write @no_growth\(steps=50\) above the function, or call "):
        call()
    assert not KEPT


async def coroutine() -> None:
    leak()


def generator() -> Iterator[None]:
    yield leak()


async def async_generator() -> AsyncIterator[None]:
    yield leak()


@pytest.mark.parametrize("function", [coroutine, generator, async_generator])
def test_a_function_whose_calls_do_not_run_it_is_refused(function: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match=rf"Wrap it: def run\(\): asyncio\.run\({function.__name__}\(\)\)"):
        no_growth(steps=24)(function)


def test_a_device_that_is_not_measured_is_refused() -> None:
    with (
        pytest.raises(ValueError, match=r"device must be cpu or cuda \(got cuda:0\)"),
        budget(mb=1, device="cuda:0"),
    ):
        pass


def test_a_block_has_a_budget() -> None:
    with budget(mb=1) as spent:
        leak()
    assert spent.mb == pytest.approx(0.16, abs=0.02)
    with pytest.raises(MemoryGrows, match=r"1\.6[0-9] MB in memory, over the allowed 1 MB"), budget(mb=1):
        for _ in range(10):
            leak()


def leave_garbage() -> None:
    cycle: list[Any] = [np.empty(20_000)]
    cycle.append(cycle)


def test_garbage_in_cycles_is_no_growth() -> None:
    no_growth(steps=24)(leave_garbage)()
    with budget(mb=1):
        for _ in range(20):
            leave_garbage()
