"""Means of metrics between two log lines, and where the time between them went."""

import time
from collections import Counter, defaultdict
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

    Nothing given is kept: tensors are summed in float64, into one vector per set of names on their device,
    and reach the host in one copy. `add` never waits for it. One NaN makes the mean NaN.

    >>> means = MetricMeans()
    >>> means.add({"loss/image": torch.tensor(1.0), "opt/updates": 3})
    >>> means.add({"loss/image": torch.tensor(2.0)})
    >>> means.flush()
    {'loss/image': 1.5, 'opt/updates': 3.0}
    """

    def __init__(self) -> None:
        self._totals: dict[tuple[torch.device, tuple[str, ...]], Tensor] = {}  # (names,) float64
        self._counts: Counter[tuple[torch.device, tuple[str, ...]]] = Counter()

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Add one value of each metric, of any dtype and device, or raise as `require_detached_scalar` does.

        Tensors may be overwritten afterwards.
        """
        by_device: dict[torch.device, dict[str, Tensor]] = defaultdict(dict)
        for name, value in metrics.items():
            tensor = value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
            require_detached_scalar(name, tensor)
            by_device[tensor.device][name] = tensor
        for device, tensors in by_device.items():
            self._add(device, tuple(tensors), torch.stack(list(tensors.values())), 1)

    def flush(self) -> dict[str, float]:
        """Return the means and forget them: one copy to the host for each device in use."""
        totals: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        for device in dict.fromkeys(device for device, _ in self._totals):
            keys = [key for key in self._totals if key[0] == device]
            values = iter(torch.cat([self._totals[key] for key in keys]).tolist())
            for key in keys:
                for name in key[1]:
                    totals[name] += next(values)
                    counts[name] += self._counts[key]
        self._clear()
        return {name: total / counts[name] for name, total in totals.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far, of an interval that a resumed run continues."""
        return {
            "tensors": [
                {"names": list(key[1]), "device": str(key[0]), "total": total, "count": self._counts[key]}
                for key, total in self._totals.items()
            ]
        }

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore the sums; those of a GPU go to `device`, where the run is now."""
        self._clear()
        numbers = state.get("floats", {}).items()  # version 0.2 saved those of host numbers apart
        old = [{"names": [n], "device": "cpu", "total": each[0], "count": each[1]} for n, each in numbers]
        for each in [*state["tensors"], *old]:
            own = torch.device("cpu") if each["device"] == "cpu" else device
            total = torch.as_tensor(each["total"], dtype=torch.float64, device=own)
            self._add(own, tuple(each["names"]), total, each["count"])

    def _add(self, device: torch.device, names: tuple[str, ...], total: Tensor, count: int) -> None:
        key = (device, names)
        if key not in self._totals:
            with torch.inference_mode(False):  # else a first call inside it forbids the later ones
                self._totals[key] = torch.zeros(len(names), dtype=torch.float64, device=device)
        self._totals[key] += total
        self._counts[key] += count

    def _clear(self) -> None:
        self._totals.clear()
        self._counts.clear()


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
