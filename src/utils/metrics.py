"""Means of metrics between two log lines, and where the time between them went."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class AttachedMetricError(ValueError):
    """A metric still requires grad: keeping it would keep the graph of a whole update alive."""


def require_detached_scalar(name: str, value: Tensor) -> None:
    """Raise `AttachedMetricError` for a tensor that requires grad, `ValueError` for one with a dimension."""
    if value.requires_grad:
        raise AttachedMetricError(
            f"Metric `{name}` requires grad (grad_fn={value.grad_fn}): keeping it would keep its graph. "
            "Pass it as `.detach()`."
        )
    if value.ndim:
        raise ValueError(f"Metric `{name}` must be one number, got a tensor of shape {tuple(value.shape)}.")


class MetricMeans:
    """The mean of each metric since the last flush, each over the calls that gave it.

    Nothing given is kept: values are summed in float64, into one vector per set of names on their device, and
    reach the host when they are flushed. `add` never waits for them. One NaN makes the mean NaN.

    >>> means = MetricMeans()
    >>> means.add({"loss/image": torch.tensor(1.0), "opt/updates": torch.tensor(3)})
    >>> means.add({"loss/image": torch.tensor(2.0)})
    >>> means.flush()
    {'loss/image': 1.5, 'opt/updates': 3.0}
    """

    def __init__(self) -> None:
        self._totals: dict[tuple[str, ...], tuple[Tensor, int]] = {}  # (names,) float64, and how many of each

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Add one value of each metric, of any dtype, or raise as `require_detached_scalar` does.

        All lie on one device; they may be overwritten afterwards.
        """
        for name, value in metrics.items():
            require_detached_scalar(name, value)
        self._add(tuple(metrics), torch.stack([*metrics.values()]).double(), 1)

    def flush(self) -> dict[str, float]:
        """Return the means and forget them: one copy to the host for each set of names."""
        totals, counts = Counter[str](), Counter[str]()
        for names, (sums, count) in self._totals.items():
            totals.update(dict(zip(names, sums.tolist(), strict=True)))
            counts.update(dict.fromkeys(names, count))
        self._totals.clear()
        return {name: total / counts[name] for name, total in totals.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far, of an interval that a resumed run continues."""
        sums = self._totals.items()
        return {"tensors": [{"names": list(names), "total": t, "count": count} for names, (t, count) in sums]}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore the sums, on the device where the run is now."""
        self._totals.clear()
        numbers = state.get("floats", {}).items()  # version 0.2 saved those of host numbers apart
        old = [{"names": [name], "total": [each[0]], "count": each[1]} for name, each in numbers]
        for each in [*state["tensors"], *old]:
            total = torch.as_tensor(each["total"], dtype=torch.float64, device=device)
            self._add(tuple(each["names"]), total, each["count"])

    def _add(self, names: tuple[str, ...], values: Tensor, count: int) -> None:
        total, before = self._totals.get(names) or (torch.zeros_like(values), 0)
        self._totals[names] = (total.add_(values), before + count)


class PhaseTimer:
    """The share of wall time spent in each phase since the last flush, 0 for a phase that did not run.

    The seconds are the host's: a phase that only queues CUDA kernels looks cheap, and the one that next waits
    for the device pays for it. The shares add up to at most 1 as long as phases are not nested.
    """

    def __init__(self, *phases: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(phases, 0.0)
        self._started = clock()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count the time inside the `with` block for a phase, also when the block raises."""
        before = self._seconds[phase]
        started = self._clock()
        try:
            yield
        finally:
            self._seconds[phase] = before + self._clock() - started

    def flush(self) -> dict[str, float]:
        """Return `time/<phase>_fraction` of the wall time since the last flush, and start again."""
        now = self._clock()
        elapsed = max(now - self._started, 1e-9)
        fractions = {f"time/{phase}_fraction": seconds / elapsed for phase, seconds in self._seconds.items()}
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._started = now
        return fractions
