"""Compare four leak criteria: `lines_against_order.py`.

The series are from `test_verdict_simulation.py`. Run this in the repository root (6 seconds):

PYTHONPATH=packages/heapwatch/tests python docs/results/memory/scripts/lines_against_order.py
"""

import numpy as np
import test_verdict_simulation as study  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

Flags = NDArray[np.bool_]


def first_to_last(series: study.Series) -> Flags:
    """Return whether the last sample exceeds the first by the tolerance."""
    return series[:, -1] - series[:, 0] > study.TOLERANCE_MB


def least_squares(series: study.Series) -> Flags:
    """Return whether the slope exceeds 2.36 standard errors (one-sided 1 %, 118 degrees of freedom)."""
    n = series.shape[1]
    x = np.arange(n) - (n - 1) / 2
    slope = series @ x / (x @ x)
    rest = series - series.mean(1, keepdims=True) - slope[:, None] * x
    return slope / np.sqrt((rest**2).sum(1) / (n - 2) / (x @ x)) > 2.36


def mann_kendall(series: study.Series) -> Flags:
    """Return whether ordered pairs exceed the trendless expectation by 2.33 standard deviations (1 %)."""
    n = series.shape[1]
    later, earlier = np.tril_indices(n, -1)
    s = np.sign(series[:, later] - series[:, earlier]).sum(1)
    return s / np.sqrt(n * (n - 1) * (2 * n + 5) / 18) > 2.33


if __name__ == "__main__":
    print("first-last  least squares  Mann-Kendall  ours  (% of 400 series called a leak)")
    for name, (make, _, _) in study.ROWS.items():
        series = make(np.random.default_rng(1))
        shares = [100 * float(np.mean(test(series))) for test in (first_to_last, least_squares, mann_kendall)]
        shares.append(100 * study.rate(series, study.TOLERANCE_MB))
        print(
            "".join(f"{share:{width}.0f}" for share, width in zip(shares, (10, 15, 14, 6), strict=True)),
            f"  {name}",
        )
