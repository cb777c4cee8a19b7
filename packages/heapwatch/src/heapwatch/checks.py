"""Assert in a test, or around a block, that code leaves no more in memory than before."""

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Never, ParamSpec, TypeVar

import torch

from .counters.glibc import in_use_bytes
from .errors import UsageError
from .leaks.detector import confirm
from .leaks.verdict import MIN_SAMPLES, TrendClass, classify_trend
from .objects.heap import ELSEWHERE, growth_sources, measure_heap

_P = ParamSpec("_P")
_R = TypeVar("_R")
_MB = 1e6


class MemoryGrows(AssertionError):
    """Code holds more memory than it may; the message names who holds it."""


def no_growth(
    *misplaced: Never, steps: int = 50, threshold_mb: float = 0.1
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that calls a function `steps` times, and raises if memory grows with the calls.

    Half as many calls go before, not judged: first times take memory that stays. Host memory is judged, and
    that of CUDA where it is there; what a collection of garbage frees is no growth.

    Args:
        misplaced: Nothing: a function is given to what `no_growth` returns.
        steps: Judged calls, 24 or more.
        threshold_mb: Growth over the judged calls up to which memory counts as flat, in MB of 1e6 bytes.

    Returns:
        A decorator; what it makes returns what the last call returned.

    Raises:
        UsageError: If it is given a function, or `steps` is under 24, which no verdict can rest on.
        MemoryGrows: From the decorated function.

    >>> kept = []
    >>> @no_growth(steps=24)
    ... def update():
    ...     kept.append(bytearray(100_000))
    >>> try:
    ...     update()
    ... except MemoryGrows as error:
    ...     print(str(error)[:17])
    update leaves +10
    """
    if misplaced:
        raise UsageError(
            "no_growth takes steps= and threshold_mb= by name, and returns a decorator. Write "
            "@no_growth(steps=50) above the function, or no_growth(steps=50)(function)() to call it at once."
        )
    if not isinstance(steps, int) or steps < MIN_SAMPLES:
        raise UsageError(f"steps={steps} is too few for a verdict. Use {MIN_SAMPLES} or more.")

    def decorator(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def repeated(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for _ in range(steps // 2):
                function(*args, **kwargs)
            for is_whole in (False, True):  # the whole heap takes seconds, and is seldom needed
                before = measure_heap({}, is_whole)
                result, series = _called(steps, lambda: function(*args, **kwargs))
                tests = {device: classify_trend(series[device], threshold_mb * _MB) for device in series}
                device = next((each for each in tests if tests[each].verdict is TrendClass.growing), None)
                if device is None:
                    return result
                rise = series[device][-1] - series[device][0]
                if confirm(rise, functools.partial(_in_use, device)) is TrendClass.collectable:
                    return result
                found = growth_sources({}, before, steps, rise, device)
                if ELSEWHERE not in found.lines:
                    break
            name = getattr(function, "__name__", "the function")
            growth = f"{rise / (steps - 1):+,.0f} bytes a call"
            what = f"{name} leaves {growth} in memory ({device}), {steps:,} calls"
            raise MemoryGrows("\n  ".join([what, *found.lines]))

        return repeated

    return decorator


@dataclass
class Spent:
    """What a block has left in memory."""

    mb: float = 0.0
    """In MB of 1e6 bytes, known when the block has ended."""


@contextmanager
def budget(mb: float, device: str = "cpu") -> Iterator[Spent]:
    """Raise if a block leaves more in memory than a number of MB of 1e6 bytes.

    >>> with budget(mb=1):
    ...     numbers = list(range(1000))

    Args:
        mb: What may be more in use at the end of the block than at its begin.
        device: "cpu" or "cuda".

    Raises:
        ValueError: For another device.
        MemoryGrows: If more is.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device={device} is none of cpu, cuda.")
    before, spent = measure_heap({}, is_whole=False), Spent()
    gc.collect()  # older garbage, freed inside the block, would hide what it leaves
    start = _in_use(device)
    yield spent
    if _in_use(device) - start > mb * _MB:
        gc.collect()  # objects in reference cycles are not kept
    rise = _in_use(device) - start
    spent.mb = rise / _MB
    if spent.mb > mb:
        found = [line for line in growth_sources({}, before, 1, rise, device).lines if line != ELSEWHERE]
        what = f"the block leaves {spent.mb:,.2f} MB in memory, {mb:g} are allowed"
        raise MemoryGrows("\n  ".join([what, *found]))


def _called(times: int, call: Callable[[], Any]) -> tuple[Any, dict[str, list[int]]]:
    """Return the last result, and the bytes in use after each call by device."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    series: dict[str, list[int]] = {device: [] for device in devices}
    result = None
    for _ in range(times):
        result = call()
        for device, values in series.items():
            values.append(_in_use(device))
    return result, series


def _in_use(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else in_use_bytes()
