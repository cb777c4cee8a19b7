"""Alarms, restarts and garbage detection, on given series and on real memory."""

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from heapwatch.counters.glibc import in_use_bytes, in_use_source, kernel_counts
from heapwatch.leaks.detector import LeakDetector, classify_resident, confirm, hours_to_limit
from heapwatch.leaks.verdict import TrendClass, TrendTest, classify_trend

from .fresh import in_a_fresh_process

KB, MB = 1e3, 1e6
exact_only = pytest.mark.skipif(not in_use_source().startswith("mallinfo2"), reason="needs glibc's allocator")


def first_alarm(
    detector: LeakDetector, value: Callable[[int], float], samples: int, start: int = 0
) -> int | None:
    """Feed samples until the detector raises an alarm, and return their number."""
    for sample in range(start, start + samples):
        detector.add(sample, value(sample))
        if detector.alarm:
            return sample - start + 1
    return None


def test_the_alarm_comes_with_the_second_leak_trend_test() -> None:
    # Tests start at 48 samples, half of the window, and repeat 8 samples later.
    assert first_alarm(LeakDetector(MB), lambda sample: MB * sample, 200) == 56


def test_an_alarm_stays_until_a_judgement_is_no_leak() -> None:
    detector = LeakDetector(MB)
    for sample in range(400):
        detector.add(sample, MB * min(sample, 100))
        assert sample != 100 or detector.alarm
    assert not detector.alarm
    assert detector.trend_test().verdict is TrendClass.flat


def test_a_steady_leak_alarms_at_whatever_steps_it_is_sampled() -> None:
    detector, steps = LeakDetector(MB), np.cumsum(np.geomspace(1000, 1, 300)).astype(int)
    alarms = []
    for step in steps:
        detector.add(int(step), 10.0 * KB * step)
        alarms.append(detector.alarm)
    assert alarms.index(True) == 55 and all(alarms[55:200])


def test_only_the_window_is_judged() -> None:
    detector = LeakDetector(MB)
    for sample in range(1000):
        detector.add(sample, float(sample))
    assert list(detector.values()) == list(range(904, 1000))
    assert detector.trend_test() == classify_trend(np.arange(904.0, 1000.0), MB)


@exact_only
def test_ten_thousand_samples_keep_nothing() -> None:
    detector = LeakDetector(MB)
    for sample in range(500):
        detector.add(sample, 1e9)
    gc.collect()
    before = in_use_bytes()
    for sample in range(500, 10_500):
        detector.add(sample, 1e9)
    gc.collect()
    # One small object retained per sample would be 240 KB.
    assert in_use_bytes() - before == pytest.approx(0, abs=40 * KB)


def test_an_event_drops_earlier_samples_and_skips_a_fifth_of_the_steps_so_far() -> None:
    detector = LeakDetector(MB)
    for step in range(1000, 2001, 10):
        detector.add(step, 1e9)
    detector.restart(2000, "first checkpoint")
    for step in range(2010, 2301, 10):
        detector.add(step, float(step))
    # The limit is 2000 + (2000 - 1000) / 5.
    assert list(detector.values()) == list(range(2210, 2301, 10))


def test_an_event_takes_back_an_alarm() -> None:
    detector = LeakDetector(MB)
    assert first_alarm(detector, lambda sample: MB * sample, 100) == 56
    detector.restart(55, "finding")
    assert not detector.alarm
    # 11 is a fifth of 55.
    assert first_alarm(detector, lambda sample: MB * sample, 100, start=56) == 11 + 56


@pytest.mark.parametrize("updates", [1, 12, 30])
@pytest.mark.parametrize(("gathered", "leaked"), [(10 * MB, 0.0), (0.0, 3 * MB)], ids=["emptied", "leak"])
def test_where_updates_pause_a_leak_rises_from_phase_to_phase(
    updates: int, gathered: float, leaked: float
) -> None:
    detector, ever, noise = LeakDetector(MB), False, np.random.default_rng(0)
    for sample in range(400):
        # The pause after a phase drops the objects of the phase.
        phase, place = divmod(sample, updates)
        value = gathered * place + leaked * phase + 0.05 * MB * noise.standard_normal()
        detector.add(sample, value, is_after_pause=place == 0)
        ever |= detector.alarm
    assert ever is (leaked > 0)


def test_growth_in_the_one_phase_that_is_judged_is_no_alarm_right_after_a_pause() -> None:
    detector = LeakDetector(MB)
    for sample in range(100):
        detector.add(sample, MB * max(0, sample - 30), is_after_pause=sample == 30)
        assert not detector.alarm or sample >= 30 + 64


def test_nothing_is_judged_before_all_awaited_events() -> None:
    detector = LeakDetector(MB, wait_for=["first update", "first evaluation"])
    assert first_alarm(detector, lambda sample: MB * sample, 100) is None
    detector.restart(100, "first update")
    assert first_alarm(detector, lambda sample: MB * sample, 100, start=101) is None
    assert len(detector.values()) == 0
    detector.restart(200, "first evaluation")
    # 40 is a fifth of 200.
    assert first_alarm(detector, lambda sample: MB * sample, 100, start=201) == 40 + 56


class Cycle:
    """References itself, so only the garbage collector frees it."""

    def __init__(self, nbytes: int) -> None:
        self.tensor = torch.empty(nbytes, dtype=torch.uint8)
        self.me = self


@exact_only
def test_real_cycles_are_collectable() -> None:
    gc.collect()
    # An automatic collection in between would produce a sawtooth.
    gc.disable()
    try:
        detector = LeakDetector(MB)

        def value(_: int) -> float:
            Cycle(400_000)
            return in_use_bytes()

        assert first_alarm(detector, value, 80) == 56
        assert detector.trend_test().slope_bytes_per_sample == pytest.approx(400_000, rel=0.02)
        verdict = confirm(detector.trend_test().rise_bytes, in_use_bytes)
    finally:
        gc.enable()
    assert verdict is TrendClass.collectable


@exact_only
def test_a_real_list_that_grows_is_a_leak() -> None:
    held: list[torch.Tensor] = []
    detector = LeakDetector(MB)

    def value(_: int) -> float:
        held.append(torch.empty(100_000, dtype=torch.uint8))
        return in_use_bytes()

    assert first_alarm(detector, value, 80) == 56
    judgement = detector.trend_test()
    assert judgement.slope_bytes_per_sample == pytest.approx(100_000, rel=0.05)
    assert confirm(judgement.rise_bytes, in_use_bytes) is TrendClass.growing


@exact_only
def test_a_list_of_small_python_objects_is_a_leak() -> None:
    # For the C allocator only the list itself grows.
    held: list[dict[str, float]] = []
    detector = LeakDetector(MB)

    def value(sample: int) -> float:
        held.extend({"step": float(sample), "loss": float(index)} for index in range(500))
        return in_use_bytes()

    assert first_alarm(detector, value, 80) == 56
    assert detector.trend_test().slope_bytes_per_sample > 500 * (64 + 2 * 24)
    assert confirm(detector.trend_test().rise_bytes, in_use_bytes) is TrendClass.growing


def bursts() -> tuple[list[int], list[int]]:
    """Return bytes in use and resident after each burst of temporary blocks. Bursts grow."""
    ctypes.CDLL(None).malloc_trim(0)
    pin = bytearray(0)
    in_use, resident = [], []
    for sample in range(60):
        # The last block survives until the next burst. It is at the top, so the heap cannot shrink.
        burst = [bytearray(b"1") * 60_000 for _ in range(10 * (sample + 1))]
        pin = burst[-1]
        del burst
        in_use.append(in_use_bytes())
        resident.append(kernel_counts()["rss_anon"])
    del pin
    return in_use, resident


@exact_only
def test_what_the_c_allocator_keeps_of_freed_blocks_is_retention() -> None:
    in_use, resident = in_a_fresh_process(bursts)
    held = classify_trend(in_use, MB)
    found = classify_resident(held, resident, MB)
    assert held.verdict is TrendClass.flat
    assert found.verdict is TrendClass.retention
    assert found.slope_bytes_per_sample == pytest.approx(600_000, rel=0.25)


def test_resident_memory_that_rises_with_live_objects_is_not_retention() -> None:
    rising = [MB * sample for sample in range(96)]
    assert classify_resident(classify_trend(rising, MB), rising, MB).verdict is TrendClass.growing


@pytest.mark.parametrize(("tolerance", "least"), [(MB, 8 * MB), (4 * MB, 20 * MB)])
def test_resident_memory_needs_8_mb_and_five_times_the_tolerance(tolerance: float, least: float) -> None:
    flat = classify_trend([1e9] * 96, tolerance)
    # The rise is over the judged samples.
    rise = np.arange(96) * least / 64
    assert classify_resident(flat, 0.9 * rise, tolerance).verdict is not TrendClass.retention
    assert classify_resident(flat, 1.1 * rise, tolerance).verdict is TrendClass.retention


def test_the_hours_to_the_limit_are_headroom_over_slope() -> None:
    # Incident: 202.7 KB per step, one sample per 1,000 steps, 6 GB left, 100 seconds per sample.
    leak = classify_trend([202.7 * MB * sample for sample in range(48)], MB)
    assert hours_to_limit(leak, 100, 6e9) == pytest.approx(6000 / 202.7 * 100 / 3600)
    assert hours_to_limit(leak, 100, -1e9) == 0


@pytest.mark.parametrize(
    "verdict", [TrendClass.flat, TrendClass.plateauing, TrendClass.collectable, TrendClass.undecided]
)
def test_bounded_growth_has_no_hours_to_the_limit(verdict: TrendClass) -> None:
    judgement = TrendTest(verdict, 5.0, (4.0, 6.0), 320.0, 20, 96)
    assert hours_to_limit(judgement, 100, 6e9) is None


@pytest.mark.parametrize(
    ("curve", "alarms"),
    [(np.log, False), (lambda n: np.minimum(n, 40), False), (np.sqrt, True), (np.positive, True)],
    ids=["logarithm", "cache of 40", "square root", "line"],
)
def test_a_curve_that_saturates_alarms_at_no_sample_however_straight_its_window_looks(
    curve: Any, alarms: bool
) -> None:
    detector, ever = LeakDetector(MB), False
    for sample in range(2000):
        detector.add(sample, 10 * MB * float(curve(sample + 1.0)))
        ever |= detector.alarm
    assert ever is alarms


@pytest.mark.parametrize(("slower_from", "alarms"), [(400, True), (500, False), (820, False), (940, True)])
def test_an_alarm_judges_all_samples_thinned_to_a_window_s_length(slower_from: int, alarms: bool) -> None:
    detector = LeakDetector(MB)
    for sample in range(1000):
        detector.add(sample, MB * (sample + min(sample, slower_from)))
    # Half the speed from 400 counts as a line, because the first third is not judged.
    assert detector.alarm is alarms


def test_growth_has_lasted_since_the_samples_that_it_was_first_seen_in() -> None:
    detector = LeakDetector(MB)
    for sample in range(200):
        detector.add(sample, float(sample) * MB)
    assert detector.growing_samples == 64 + 8 * (200 // 8 - 48 // 8)
    for sample in range(200, 300):
        detector.add(sample, 200.0 * MB)
    assert detector.growing_samples == 0
