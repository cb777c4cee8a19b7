"""The guard's reaction to growth of real memory: a warning, a leak, or an end of the growth."""

import functools
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import TextIO

import numpy as np
import pytest
from heapwatch.counters.limits import memory_available_bytes
from heapwatch.leaks.guard import MemoryGuard
from heapwatch.leaks.table import Finding
from heapwatch.leaks.verdict import TrendClass
from heapwatch.objects.census import Component

KB = 1000
KEPT: list[np.ndarray] = []


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    KEPT.clear()


@pytest.fixture
def guard() -> MemoryGuard:
    return MemoryGuard(threshold_mb=2.0, searches_graphs=False)


def test_a_leak_counts_however_many_warnings_came_before_it(guard: MemoryGuard) -> None:
    for step in range(300):
        guard._report(Finding(step, "memory", TrendClass.growing, ()))
    assert len(guard.findings) == 100
    guard._report(Finding(300, "memory", TrendClass.leak, ()))
    assert guard.has_leak


def follow(guard: MemoryGuard, samples: range, grow: Callable[[], None]) -> list[Finding]:
    """Let memory grow before each sample, and return the findings about host memory in use."""
    for step in samples:
        grow()
        guard.sample(step, guard.counters(), {}, {})
    return [each for each in guard.findings if each.resource.startswith("host memory in use")]


def keep(nbytes: int) -> Callable[[], None]:
    # The array is never touched, so it counts without occupying pages.
    return lambda: KEPT.append(np.empty(nbytes, np.uint8))


def test_slow_growth_is_named_and_ends_no_run_and_is_a_leak_once_it_has_lasted(guard: MemoryGuard) -> None:
    found = follow(guard, range(80), keep(200 * KB))
    assert [each.verdict for each in found] == [TrendClass.growing] and not guard.has_leak
    assert f"module {__name__}.KEPT[*] holds" in found[0].sources[0] and "runs out" in found[0].text()
    assert f"{__name__}.KEPT (list, " in found[0].text()
    assert "not yet a leak" in found[0].text()
    found = follow(guard, range(80, 420), keep(200 * KB))
    assert len(found) == 1 and not guard.has_leak
    found = follow(guard, range(420, 520), keep(200 * KB))
    assert [each.verdict for each in found] == [TrendClass.growing, TrendClass.leak] and guard.has_leak


def test_growth_that_takes_a_twentieth_of_what_is_left_is_a_leak_at_once(guard: MemoryGuard) -> None:
    found = follow(guard, range(60), keep(memory_available_bytes() // 200))
    assert [each.verdict for each in found] == [TrendClass.leak] and guard.has_leak
    assert "memory runs out in" in found[0].text()


def test_a_cache_that_is_full_is_no_suspect_any_more(guard: MemoryGuard) -> None:
    follow(guard, range(80), keep(200 * KB))
    found = follow(guard, range(80, 560), lambda: None)
    assert [each.verdict for each in found] == [TrendClass.growing] and not guard.has_leak


@functools.lru_cache(maxsize=1_000)
def opened(number: int) -> TextIO:
    del number
    return open(os.devnull)


@pytest.mark.parametrize("is_bounded", [True, False])
def test_open_files_are_a_leak_except_in_a_cache_below_its_capacity(
    guard: MemoryGuard, is_bounded: bool
) -> None:
    files: list[TextIO] = []
    # This container fills at the same rate, without any files.
    numbers = deque[int](maxlen=1_000)

    def grow() -> None:
        numbers.append(len(files))
        files.append(opened(len(files)) if is_bounded else open(os.devnull))

    follow(guard, range(80), grow)
    for each in files:
        each.close()
    opened.cache_clear()
    [found] = [each for each in guard.findings if each.resource == "open files"]
    assert guard.has_leak is not is_bounded
    assert ("of 1,000 (maxsize), full in about" in found.text()) is is_bounded


def test_a_component_that_grows_beyond_its_plan_is_reported_by_its_own_name_and_again_when_it_grows_again(
    guard: MemoryGuard,
) -> None:
    store = {"small": np.zeros(1), "large": np.zeros(1)}

    def sample(step: int) -> None:
        components = {name: Component((value,), planned_bytes=1000) for name, value in store.items()}
        guard.sample(step, guard.counters(), store, components)

    def grow(steps: range) -> None:
        for step in steps:
            store["large"] = np.empty((step + 1) * 25_000)
            sample(step)

    grow(range(80))
    named = [each.resource for each in guard.findings if each.resource.startswith("the component")]
    assert named == ["the component large"]
    for step in range(80, 250):
        sample(step)
    grow(range(250, 350))
    named = [each.resource for each in guard.findings if each.resource.startswith("the component")]
    assert named == ["the component large"] * 2


def test_a_component_that_fills_a_container_with_a_capacity_is_no_leak() -> None:
    guard = MemoryGuard(searches_graphs=False, patience=0)
    replay = deque[np.ndarray](maxlen=100_000)
    for step in range(80):
        replay.append(np.empty(100_000, np.uint8))
        guard.sample(step, guard.counters(), {}, {"replay": Component((replay,))})
    [found] = [each for each in guard.findings if each.resource == "the component replay"]
    assert found.verdict is TrendClass.filling
    assert "100,000 (maxlen)" in found.text() and "runs out" not in found.text()
