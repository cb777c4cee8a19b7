"""Means of metrics and timings of phases between two log lines."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class AttachedMetricError(ValueError):
    """A metric still requires grad, so storing it would keep the graph of a whole update in memory."""


def require_detached_scalar(name: str, value: Tensor) -> None:
    """Raise `AttachedMetricError` if a tensor requires grad, or `ValueError` if it is not a scalar."""
    if value.requires_grad:
        raise AttachedMetricError(
            f"Metric `{name}` requires grad (grad_fn={value.grad_fn}). Storing it would keep its graph "
            "alive. Pass the detached value (`.detach()`)."
        )
    if value.ndim:
        raise ValueError(f"Metric `{name}` must be a scalar, got a tensor of shape {tuple(value.shape)}.")


class MetricMeans:
    """The mean of each metric since the last flush, over all calls that included it.

    Values are summed in float64 on their device, in one vector per set of names, and the inputs are not
    stored. Only `flush` copies the sums to the host, so `add` never synchronizes. One NaN makes the mean NaN.

    >>> means = MetricMeans()
    >>> means.add({"loss/image": torch.tensor(1.0), "opt/updates": torch.tensor(3)})
    >>> means.add({"loss/image": torch.tensor(2.0)})
    >>> means.flush()
    {'loss/image': 1.5, 'opt/updates': 3.0}
    """

    def __init__(self) -> None:
        # For each set of names: their sums, (names,) float64, and the number of calls.
        self._totals: dict[tuple[str, ...], tuple[Tensor, int]] = {}

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Add one value of each metric. See `require_detached_scalar` for errors.

        Values may have any dtype and must be on one device. The caller may overwrite them afterwards.
        """
        for name, value in metrics.items():
            require_detached_scalar(name, value)
        self._add(tuple(metrics), torch.stack([*metrics.values()]).double(), 1)

    def flush(self) -> dict[str, float]:
        """Return the means and reset them. This makes one copy to the host for each set of names."""
        totals, counts = Counter[str](), Counter[str]()
        for names, (sums, count) in self._totals.items():
            totals.update(dict(zip(names, sums.tolist(), strict=True)))
            counts.update(dict.fromkeys(names, count))
        self._totals.clear()
        return {name: total / counts[name] for name, total in totals.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of the current interval, so that a resumed run can continue it."""
        sums = self._totals.items()
        return {"tensors": [{"names": list(names), "total": t, "count": count} for names, (t, count) in sums]}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore the sums on `device`, the current device of the run."""
        self._totals.clear()
        # Version 0.2 saved the sums of host numbers separately.
        numbers = state.get("floats", {}).items()
        old = [{"names": [name], "total": [each[0]], "count": each[1]} for name, each in numbers]
        for each in [*state["tensors"], *old]:
            total = torch.as_tensor(each["total"], dtype=torch.float64, device=device)
            self._add(tuple(each["names"]), total, each["count"])

    def _add(self, names: tuple[str, ...], values: Tensor, count: int) -> None:
        total, before = self._totals.get(names) or (torch.zeros_like(values), 0)
        self._totals[names] = (total.add_(values), before + count)


class PhaseTimer:
    """The fraction of wall time spent in each phase since the last flush, or 0 if the phase did not run.

    Times are measured on the host. A phase that only queues CUDA kernels looks cheap, and their time counts
    towards the next phase that waits for the device. Unless phases are nested, fractions sum to at most 1.
    """

    def __init__(self, *phases: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(phases, 0.0)
        self._started = clock()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time spent inside the `with` block to a phase, even if the block raises an exception."""
        before = self._seconds[phase]
        started = self._clock()
        try:
            yield
        finally:
            self._seconds[phase] = before + self._clock() - started

    def flush(self) -> dict[str, float]:
        """Return the fractions of wall time since the last flush, `time/<phase>_fraction`, and reset them."""
        now = self._clock()
        elapsed = max(now - self._started, 1e-9)
        fractions = {f"time/{phase}_fraction": seconds / elapsed for phase, seconds in self._seconds.items()}
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._started = now
        return fractions
