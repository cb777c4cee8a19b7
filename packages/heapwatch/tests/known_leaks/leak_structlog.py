"""Open a log file at each step.

Report: https://github.com/hynek/structlog/pull/807
Versions: 22.1.0 to 25.5.0 (fixed in 26.1.0)
Install: pip install --target known/structlog/site-packages structlog==25.5.0
"""

import os

import structlog  # pyright: ignore[reportMissingImports]


def step(number: int) -> None:
    for _ in range(300):
        with open(os.devnull, "w") as file:
            structlog.WriteLogger(file).info("started")
