"""Warn about a value, with the value in the text.

Report: https://github.com/POSYDON-code/POSYDON/issues/364
Cause: Python remembers every different warning of a module in `__warningregistry__`.
Resolution: do not use the text with the value to identify warnings.
"""

import logging
import warnings

logging.captureWarnings(capture=True)


def clip(text: str) -> None:
    warnings.warn(text, stacklevel=1)  # grows


def step(number: int) -> None:
    for star in range(100):
        clip(f"star {number}.{star} has a mass outside the grid, so its mass and its radius are clipped")


def resolved(number: int) -> None:
    for _ in range(100):
        clip("a star has a mass outside the grid, so its mass and its radius are clipped")
