"""Means of metrics between two log lines, and where the time between them went.

Nothing given to these classes is kept: tensors are summed into one vector per set of names on their own
device, and reach the host in one copy per log interval.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class AttachedMetricError(ValueError):
    """A metric still requires grad: keeping it would keep the graph of a whole update alive."""


def require_detached_scalar(name: str, value: Tensor) -> None:
    """Check that a metric is one number and holds no graph.

    Raises:
        AttachedMetricError: If `value` requires grad.
        ValueError: If `value` has any dimension.
    """
    if value.requires_grad:
        raise AttachedMetricError(
            f"Metric `{name}` requires grad (grad_fn={value.grad_fn}): keeping it would keep its graph. "
            "Pass it as `.detach()`."
        )
    if value.ndim:
        raise ValueError(f"Metric `{name}` must be one number, got a tensor of shape {tuple(value.shape)}.")


class MetricMeans:
    """The mean of each metric since the last flush, each over the calls that gave it.

    Sums are float64, on the device of the tensor; `add` never waits for the device. A NaN in one call makes
    the mean NaN: it is meant to be seen.

    >>> means = MetricMeans()
    >>> means.add({"loss/image": torch.tensor(1.0), "opt/updates": 3})
    >>> means.add({"loss/image": torch.tensor(2.0)})
    >>> means.flush()
    {'loss/image': 1.5, 'opt/updates': 3.0}
    """

    def __init__(self) -> None:
        self._tensors: dict[tuple[torch.device, tuple[str, ...]], _VectorSum] = {}
        self._floats: dict[str, tuple[float, int]] = {}

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Add one value of each metric; the names may differ from call to call.

        Args:
            metrics: Detached tensors without dimensions, of any dtype and device, and host numbers. The
                tensors are read now, in stream order, and may be overwritten afterwards.

        Raises:
            AttachedMetricError: If a tensor requires grad; nothing is added then.
            ValueError: If a tensor has a dimension; nothing is added then.
        """
        by_device: dict[torch.device, dict[str, Tensor]] = defaultdict(dict)
        numbers: dict[str, float] = {}
        for name, value in metrics.items():
            if isinstance(value, Tensor):
                require_detached_scalar(name, value)
                by_device[value.device][name] = value
            else:
                numbers[name] = float(value)
        for device, tensors in by_device.items():
            key = (device, tuple(tensors))
            if key not in self._tensors:
                self._tensors[key] = _VectorSum(len(tensors), device)
            self._tensors[key].add(list(tensors.values()))
        for name, number in numbers.items():
            total, count = self._floats.get(name, (0.0, 0))
            self._floats[name] = (total + number, count + 1)

    def flush(self) -> dict[str, float]:
        """Return the means and forget them: one copy to the host for each device in use."""
        totals: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        for name, total, count in [*self._read_tensors(), *((n, t, c) for n, (t, c) in self._floats.items())]:
            totals[name] += total
            counts[name] += count
        self._tensors.clear()
        self._floats.clear()
        return {name: total / counts[name] for name, total in totals.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far: they belong to an interval that a resumed run continues."""
        return {
            "tensors": [
                {"names": list(names), "device": str(device), "total": each.total, "count": each.count}
                for (device, names), each in self._tensors.items()
            ],
            "floats": {name: [total, count] for name, (total, count) in self._floats.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the sums."""
        self._tensors.clear()
        for each in state["tensors"]:
            device = torch.device(each["device"])
            sum_ = _VectorSum(len(each["names"]), device)
            sum_.total.copy_(each["total"])
            sum_.count = each["count"]
            self._tensors[device, tuple(each["names"])] = sum_
        self._floats = {name: (total, count) for name, (total, count) in state["floats"].items()}

    def _read_tensors(self) -> Iterator[tuple[str, float, int]]:
        """Yield (name, sum, count) of every sum on a device."""
        for device in dict.fromkeys(device for device, _ in self._tensors):
            sums = {names: sum_ for (where, names), sum_ in self._tensors.items() if where == device}
            totals = iter(torch.cat([sum_.total for sum_ in sums.values()]).tolist())
            for names, sum_ in sums.items():
                yield from ((name, next(totals), sum_.count) for name in names)


class _VectorSum:
    """The running sum of one set of metrics, as one vector."""

    def __init__(self, size: int, device: torch.device) -> None:
        with torch.inference_mode(False):  # else a first call inside inference mode forbids the later ones
            self.total = torch.zeros(size, dtype=torch.float64, device=device)
        self.count = 0

    def add(self, values: list[Tensor]) -> None:
        """Add one value to each element: two kernels, whatever the number of metrics."""
        self.total += torch.stack(values)
        self.count += 1


class PhaseTimer:
    """The share of wall time spent in each phase since the last flush.

    The seconds are the host's. Work on CUDA is asynchronous: a phase that only queues kernels looks cheap,
    and the phase that next waits for the device pays for it. What no phase covers is missing from the sum, so
    the shares add up to at most 1 as long as phases are not nested.

    Args:
        phases: Names of all phases; each is reported at every flush, 0 when it did not run.
        clock: Seconds since some fixed moment.

    >>> watch = PhaseTimer("collect", "update")
    >>> with watch("update"):
    ...     pass
    >>> sorted(watch.flush())
    ['time/collect_fraction', 'time/update_fraction']
    """

    def __init__(self, *phases: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(phases, 0.0)
        self._started = clock()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count the time inside the `with` block for `phase`, also when the block raises.

        Raises:
            KeyError: If the watch was not made for `phase`.
        """
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
