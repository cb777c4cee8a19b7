"""Check in a test, or around a block, that code does not retain memory."""

import functools
import gc
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Never, ParamSpec, TypeVar

from .counters.cuda import cuda_in_use
from .counters.glibc import in_use_bytes
from .errors import UsageError
from .leaks.detector import confirm
from .leaks.verdict import MIN_SAMPLES, TrendClass, classify_trend
from .objects.growth import ELSEWHERE
from .objects.heap import growth_sources, measure_heap
from .pytorch import TORCH

_P = ParamSpec("_P")
_R = TypeVar("_R")
_MB = 1e6
_IS_LAZY = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction


class MemoryGrows(AssertionError):
    """Code retains more memory than allowed. The message includes the holder of the growth."""


def no_growth(
    *misplaced: Never, steps: int = 50, threshold_mb: float = 0.1
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that calls a function `steps` times and raises if memory grows with the calls.

    The first calls allocate memory that is not freed, so half as many calls run before the measurement. The
    check covers host memory, and CUDA memory if available. Memory freed by garbage collection does not count,
    nor does a container below its capacity.

    Args:
        misplaced: Not accepted. Pass the function to the returned decorator.
        steps: Measured calls, at least 24.
        threshold_mb: Growth over the measured calls that still counts as flat, in MB of 1e6 bytes.

    Returns:
        A decorator. The decorated function returns the result of the last call.

    Raises:
        UsageError: If a function is passed, if `steps` is below 24, which is too few for a verdict, or from
            the decorator for generator and coroutine functions, because calls do not run them.
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
            "no_growth accepts steps= and threshold_mb= by name and returns a decorator. Write "
            "@no_growth(steps=50) above the function, or call no_growth(steps=50)(function)()."
        )
    if not isinstance(steps, int) or steps < MIN_SAMPLES:
        raise UsageError(f"steps must be at least {MIN_SAMPLES} for a verdict, got {steps}.")

    def decorator(function: Callable[_P, _R]) -> Callable[_P, _R]:
        name = getattr(function, "__name__", "the function")
        if any(is_lazy(function) for is_lazy in _IS_LAZY):
            repair = f"Wrap it: def run(): asyncio.run({name}()), or list({name}())."
            raise UsageError(f"A call does not run {name}, a generator or coroutine function. {repair}")

        @functools.wraps(function)
        def repeated(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for _ in range(steps // 2):
                function(*args, **kwargs)
            # A search of the whole heap is slow (seconds) and rarely needed.
            for is_whole in (False, True):
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
                if found.is_filling:
                    return result
                if ELSEWHERE not in found.lines:
                    break
            growth = f"{rise / (steps - 1):+,.0f} bytes per call"
            what = f"{name} leaves {growth} in memory ({device}), over {steps:,} calls"
            raise MemoryGrows("\n  ".join([what, *found.shown]))

        return repeated

    return decorator


@dataclass
class Spent:
    """Memory that a block leaves in use."""

    mb: float = 0.0
    """In MB of 1e6 bytes, set when the block ends."""


@contextmanager
def budget(mb: float, device: str = "cpu") -> Iterator[Spent]:
    """Raise if a block leaves more than `mb` MB (1e6 bytes) of memory in use.

    >>> with budget(mb=1):
    ...     numbers = list(range(1000))

    Args:
        mb: Allowed difference between the memory in use after and before the block.
        device: "cpu" or "cuda".

    Raises:
        ValueError: If the device is unknown.
        MemoryGrows: If the difference is larger.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda (got {device}).")
    before, spent = measure_heap({}, is_whole=False), Spent()
    # Older garbage, if freed inside the block, would hide growth of the block.
    gc.collect()
    start = _in_use(device)
    yield spent
    if _in_use(device) - start > mb * _MB:
        # Objects in reference cycles are not retained.
        gc.collect()
    rise = _in_use(device) - start
    spent.mb = rise / _MB
    if spent.mb > mb:
        found = [line for line in growth_sources({}, before, 1, rise, device).shown if line != ELSEWHERE]
        what = f"the block leaves {spent.mb:,.2f} MB in memory, over the allowed {mb:g} MB"
        raise MemoryGrows("\n  ".join([what, *found]))


def _called(times: int, call: Callable[[], Any]) -> tuple[Any, dict[str, list[int]]]:
    """Return the result of the last call, and the bytes in use by device after each call."""
    torch = TORCH.refresh()
    devices = ("cpu", "cuda") if torch is not None and torch.cuda.is_available() else ("cpu",)
    series: dict[str, list[int]] = {device: [] for device in devices}
    result = None
    for _ in range(times):
        result = call()
        for device, values in series.items():
            values.append(_in_use(device))
    return result, series


def _in_use(device: str) -> int:
    if device == "cpu":
        return in_use_bytes()
    cuda = cuda_in_use()
    return cuda.memory_allocated() if cuda else 0
