"""Accuracy of the verdict on 400 simulated series of each kind. The rates were measured with these seeds.

Noise has a standard deviation of 1 MB, the tolerance is 3 MB, and series have 120 samples. The rates of
`leak` are compared with the study behind the method. Lengths and amplitudes that the study omits are our
choice.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from heapwatch.leaks.detector import LeakDetector
from heapwatch.leaks.verdict import TrendClass, classify_trend
from numpy.typing import NDArray

Series = NDArray[np.float64]
SERIES, SAMPLES, TOLERANCE_MB = 400, 120, 3.0
# The study had 60 to 200 series of each kind.
STUDY_SERIES = 100
EXACT_TOLERANCE_MB = 0.1
EXACT_NOISE_MB = 0.01


def noise(rng: np.random.Generator, samples: int = SAMPLES) -> Series:
    return rng.normal(0, 1, (SERIES, samples))


def spikes(rng: np.random.Generator) -> Series:
    hit = rng.random((SERIES, SAMPLES)) < 0.1
    return noise(rng) + hit * rng.exponential(20, (SERIES, SAMPLES))


def autoregressive(rng: np.random.Generator, coefficient: float, samples: int = SAMPLES) -> Series:
    values = noise(rng, samples)
    for sample in range(1, samples):
        scaled = math.sqrt(1 - coefficient**2) * values[:, sample]
        values[:, sample] = coefficient * values[:, sample - 1] + scaled
    return values


def sawtooth(rng: np.random.Generator, samples: int = SAMPLES) -> Series:
    phase = np.arange(samples) / 24 + rng.random((SERIES, 1))
    return 20 * (phase % 1) + noise(rng, samples)


def warm_up(rng: np.random.Generator, tau: float) -> Series:
    return 90 * (1 - np.exp(-run() / tau)) + noise(rng)


def ramp(rng: np.random.Generator, until: float) -> Series:
    return 100 * np.minimum(run() / until, 1) + noise(rng)


def stairs(rng: np.random.Generator) -> Series:
    step = rng.random((SERIES, SAMPLES)) < np.minimum(1, 3 / np.arange(1, SAMPLES + 1))
    return 8.0 * step.cumsum(axis=1) + noise(rng)


def random_walk(rng: np.random.Generator) -> Series:
    return rng.normal(0, 0.3, (SERIES, SAMPLES)).cumsum(axis=1)


def run(samples: int = SAMPLES) -> Series:
    return np.arange(samples) / samples


def rate(series: Series, tolerance_mb: float, verdict: TrendClass = TrendClass.growing) -> float:
    return float(np.mean([classify_trend(row, tolerance_mb).verdict is verdict for row in series]))


def margin(expected: float) -> float:
    """Return three standard deviations of the difference between our share and the study's."""
    clipped = min(max(expected, 0.01), 0.99)
    return 3 * math.sqrt(clipped * (1 - clipped) * (1 / SERIES + 1 / STUDY_SERIES))


# Rates of `leak` in the study and in this simulation.
NOTHING_LEAKS = {
    "white noise": (noise, 0.0, 0.0),
    "spikes": (spikes, 0.0, 0.0),
    "autoregressive 0.8": (lambda rng: autoregressive(rng, 0.8), 0.0, 0.0),
    "autoregressive 0.95": (lambda rng: autoregressive(rng, 0.95), 0.0, 0.005),
    "sawtooth of 20 MB": (sawtooth, 0.0, 0.0),
    "warm-up, a tenth of the run": (lambda rng: warm_up(rng, 0.1), 0.0, 0.0025),
    "warm-up, a quarter of the run": (lambda rng: warm_up(rng, 0.25), 0.0, 0.0),
    "replay that fills until 50 %": (lambda rng: ramp(rng, 0.5), 0.0, 0.0),
    "replay that fills until 80 %": (lambda rng: ramp(rng, 0.8), 0.0, 0.0),
    "stairs, ever rarer": (stairs, 0.34, 0.2925),
    "random walk": (random_walk, 0.06, 0.0625),
}
SOMETHING_LEAKS = {
    "10 MB under spikes": (lambda rng: spikes(rng) + 10 * run(), 0.97, 0.9675),
    "10 MB, autoregressive 0.8": (lambda rng: autoregressive(rng, 0.8) + 10 * run(), 0.74, 0.7625),
    "12 steps of 8 MB": (lambda rng: noise(rng) + 8 * np.floor(12 * run()), 1.0, 1.0),
    "30 MB after a warm-up": (lambda rng: warm_up(rng, 0.25) + 30 * run(), 0.87, 0.8425),
    "20 MB, starting at 60 %": (lambda rng: noise(rng) + 20 * np.maximum(0, run() - 0.6) / 0.4, 1.0, 1.0),
    "5 MB": (lambda rng: noise(rng) + 5 * run(), 0.58, 0.6125),
    "20 MB under a sawtooth": (lambda rng: sawtooth(rng) + 20 * run(), 0.03, 0.0275),
    "20 MB under a sawtooth, 240 samples": (lambda rng: sawtooth(rng, 240) + 20 * run(240), 0.74, 0.6975),
}
ROWS = NOTHING_LEAKS | SOMETHING_LEAKS


@pytest.mark.parametrize("name", ROWS)
def test_the_rate_of_leak_verdicts_is_that_of_the_study(name: str) -> None:
    make, expected, measured = ROWS[name]
    found = rate(make(np.random.default_rng(1)), TOLERANCE_MB)
    assert found == pytest.approx(expected, abs=margin(expected))
    assert found == pytest.approx(measured, abs=0.005)


def test_a_warm_up_of_a_quarter_of_the_run_is_called_plateauing() -> None:
    series = warm_up(np.random.default_rng(1), 0.25)
    assert rate(series, TOLERANCE_MB, TrendClass.plateauing) > 0.95


def exact(slope_mb: Series | float, samples: int) -> Series:
    return np.random.default_rng(1).normal(0, EXACT_NOISE_MB, (SERIES, samples)) + slope_mb * np.arange(
        samples
    )


def test_an_exact_counter_finds_8_kb_a_sample_in_32_samples() -> None:
    # The study has 199 of 200.
    assert rate(exact(0.008, 32), EXACT_TOLERANCE_MB) >= 0.98


def test_an_exact_counter_that_is_flat_is_called_flat() -> None:
    assert rate(exact(0.0, 32), EXACT_TOLERANCE_MB, TrendClass.flat) == 1.0


def test_a_leak_of_2_mb_each_tenth_sample_needs_48_to_64_samples() -> None:
    def found(samples: int) -> float:
        offset = np.random.default_rng(2).integers(0, 10, (SERIES, 1))
        return rate(exact(0.0, samples) + 2.0 * ((np.arange(samples) + offset) // 10), EXACT_TOLERANCE_MB)

    assert found(32) == pytest.approx(0.41, abs=0.02)
    assert found(48) == pytest.approx(0.90, abs=0.02)
    assert found(64) == 1.0


def alarms(series: Series, events: dict[int, str], wait_for: tuple[str, ...] = ()) -> float:
    """Return the share of series in which a detector, tested after every sample, ever raises an alarm."""
    raised = 0
    for row in series:
        detector = LeakDetector(TOLERANCE_MB, wait_for=wait_for)
        for sample, value in enumerate(row):
            if sample in events:
                detector.restart(sample, events[sample])
            detector.add(sample, value)
            if detector.alarm:
                raised += 1
                break
    return raised / len(series)


def warm_ups(kind: Callable[[Series], Series]) -> Series:
    return 50 * kind(np.arange(300.0)) + noise(np.random.default_rng(1), 300)[:40]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(lambda sample: np.minimum(sample / 100, 1), id="ramp"),
        pytest.param(lambda sample: 1 - np.exp(-sample / 40), id="exponential"),
    ],
)
def test_asked_again_and_again_a_warm_up_alarms_without_gates_and_not_with_them(kind) -> None:
    series = warm_ups(kind)
    gates = {20: "first update", 100: "first evaluation"}
    assert alarms(series, events={}) > 0.5
    assert alarms(series, gates, wait_for=tuple(gates.values())) == 0.0


def test_asked_again_and_again_noise_seldom_alarms_and_a_leak_always_does() -> None:
    noisy = autoregressive(np.random.default_rng(1), 0.95, 300)[:100]
    # This is the study's rate for single tests.
    assert alarms(noisy, events={}) <= 0.12
    leaking = noise(np.random.default_rng(1), 300)[:40] + 0.2 * np.arange(300)
    assert alarms(leaking, events={}) == 1.0
