"""Cache the result of a method with lru_cache.

Report: https://github.com/PyCQA/flake8/pull/1573
Cause: the cache belongs to the class, and its keys contain every object that has called the method.
Resolution: create a cache for each object in `__init__`.
"""

import functools

import numpy as np


class StyleGuideManager:
    def __init__(self) -> None:
        self.decisions = np.ones(40_000, np.uint8)
        self.cached = functools.cache(self.find)

    def find(self, filename: str) -> int:
        return len(filename)

    @functools.cache  # noqa: B019  # grows
    def style_guide_for(self, filename: str) -> int:
        return self.find(filename)


def step(number: int) -> None:
    StyleGuideManager().style_guide_for("setup.py")


def resolved(number: int) -> None:
    StyleGuideManager().cached("setup.py")
