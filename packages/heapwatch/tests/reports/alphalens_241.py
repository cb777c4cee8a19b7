"""Draw the pages of a report.

Report: https://github.com/quantopian/alphalens/pull/241
Cause: pyplot references every figure until it is closed.
Resolution: close each figure after it has been shown.
"""

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt


def create_tear_sheet() -> None:
    _, axes = plt.subplots()  # grows
    axes.plot([1, 2, 3])


def step(number: int) -> None:
    create_tear_sheet()


def resolved(number: int) -> None:
    create_tear_sheet()
    plt.close()
