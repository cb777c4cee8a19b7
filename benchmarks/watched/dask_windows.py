"""Spectra of windows of a vibration signal with dask: power per band, and the mean spectrum."""

import argparse
import time
from collections import Counter

import dask
import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=900, help="windows")
steps = parser.parse_args().steps


class Trend:
    """The mean spectrum of all windows."""

    def __init__(self):
        self.total, self.count = 0, 0

    def add(self, power):
        """Add a spectrum."""
        self.total = self.total + power
        self.count += 1


def read_windows():
    """Yield windows of a noisy signal. The sensor fails now and then."""
    random, seconds = np.random.default_rng(1), np.arange(8_192) / 8_192
    for number in range(steps):
        window = np.sin(700 * seconds) + random.standard_normal(8_192)
        if number % 4 == 3:
            window[100:] = np.nan
        yield window
        time.sleep(0.05)


@dask.delayed
def spectrum(window):
    """Return the power per frequency."""
    weighted = window * np.hanning(len(window))
    if np.isnan(weighted).any():
        raise ValueError("the sensor was off")
    return np.abs(np.fft.rfft(weighted)) ** 2


@dask.delayed
def band_power(power, low):
    """Return the power of a band."""
    return power[low : low + 512].sum()


def main():
    """Analyse all windows."""
    trend, failures, loudest = Trend(), Counter(), Counter()
    for window in read_windows():
        power = spectrum(window)
        bands = dask.delayed([band_power(power, low) for low in range(0, 4_096, 512)])
        try:
            result, found = dask.delayed((power, bands)).compute(scheduler="threads", num_workers=2)
        except ValueError as error:
            failures[str(error)] += 1
            continue
        trend.add(result)
        loudest[int(np.argmax(found))] += 1
    print("windows:", trend.count, trend.total.mean() / max(trend.count, 1))
    print(failures, loudest)


main()
