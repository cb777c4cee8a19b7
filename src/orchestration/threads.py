"""Choose a run's number of CPU threads with a short benchmark under the machine's current load."""

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import torch

from ..config.schema import MOST_THREADS, Device, TrainConfig
from ..utils.cpus import usable_cpus
from ..utils.ranks import Ranks
from ..utils.units import count_text

_SECONDS, _LONGEST_SECONDS = 1.0, 10.0
_ROUNDS, _LEAST_ROUNDS = 5, 3
_HOPELESS = 2.0
"""A thread count is not measured again if its updates take this many times as long as the fastest."""

_NOISE = 1.05
"""Thread counts whose times are within this factor of the shortest time count as equally fast."""

_CUDA_THREADS = 4
"""Number of threads of a run on a GPU, where the CPU only samples batches and steps environments."""

_INTERVALS = 5
"""Number of log intervals over which the median update speed is taken."""


def use_threads(
    config: TrainConfig, updates: Callable[[], Iterable[Callable[[], object]]], ranks: Ranks
) -> str:
    """Set the number of threads of this process and in `config.threads`. Return the number and the reason.

    If `config.threads` is `None`, `OMP_NUM_THREADS` is used if set. Otherwise the function times `updates`,
    which have the run's shape and start with the shortest. All ranks of a run use the same number, because
    the rounding of sums depends on this number.
    """
    cpus, omp = usable_cpus(), os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if config.threads is not None:
        count = config.threads
        reason = f"threads={count}" + " in the run's config.yaml" * (config.resume is not None)
    elif omp.isdecimal() and 1 <= int(omp) <= MOST_THREADS:
        count, reason = int(omp), f"OMP_NUM_THREADS={omp}"
    elif ranks.size > 1:
        count, reason = 1, "one per rank"
    elif config.device is Device.cuda:
        count, reason = min(_CUDA_THREADS, cpus), "the GPU does the computation"
    elif cpus == 1:
        count, reason = 1, "the only CPU"
    elif not (seconds := measure(updates(), candidates(cpus))):
        count, reason = 1, "this process does not train networks"
    else:
        count, reason = choose(seconds)
    config.threads = count
    torch.set_num_threads(count)
    return f"{count} of {count_text(cpus, 'CPU')}: {reason}"


def candidates(cpus: int) -> list[int]:
    """Return the thread counts to compare: the number of CPUs and all smaller powers of two.

    >>> candidates(6)
    [1, 2, 4, 6]
    """
    return sorted({cpus, *(2**power for power in range(cpus.bit_length()))})


def measure(
    updates: Iterable[Callable[[], object]],
    counts: Sequence[int],
    seconds: float = _SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, float]:
    """Return the median seconds per update for each number of threads. The total is about `seconds`.

    The function measures the longest of `updates` that fits into the time. It alternates between counts, so
    that a change in the machine's load affects all of them. On a slow machine, three rounds may take up to
    ten times as long. Without updates, the result is empty.
    """

    def timed(update: Callable[[], object], count: int) -> float:
        torch.set_num_threads(count)
        began = clock()
        update()
        return clock() - began

    update = None
    torch.set_num_threads(1)
    for update in updates:
        # The first call allocates memory and is not timed.
        update()
        if 2 * timed(update, 1) > seconds / (_ROUNDS * len(counts)):
            break
    if update is None:
        return {}
    began, found = clock(), dict[int, list[float]]()
    for count in counts:
        first = timed(update, count)
        # The first call also starts the threads. This matters only for a short update.
        found[count] = [first if first > seconds / 2 else timed(update, count)]
        is_late = len(found) > 1 and clock() - began > seconds * _LONGEST_SECONDS
        if is_late or found[count][0] > _HOPELESS * min(found.values())[0]:
            break
    rounds = 1
    while clock() - began <= (seconds if rounds >= _LEAST_ROUNDS else seconds * _LONGEST_SECONDS):
        medians = _medians(found)
        for count, median in medians.items():
            if median <= _HOPELESS * min(medians.values()):
                found[count].append(timed(update, count))
        rounds += 1
    return _medians(found)


def _medians(found: dict[int, list[float]]) -> dict[int, float]:
    return {count: statistics.median(times) for count, times in found.items()}


def choose(seconds: dict[int, float]) -> tuple[int, str]:
    """Return the smallest of the fastest thread counts and the reason. `seconds` maps each count to its time.

    >>> choose({1: 1.0, 2: 0.98, 4: 3.0})
    (1, 'as fast as 2 in a benchmark at startup')
    """
    fastest = min(seconds.values())
    chosen = min(count for count, each in seconds.items() if each <= _NOISE * fastest)
    other = min((count for count in seconds if count != chosen), key=seconds.__getitem__)
    ratio = seconds[other] / seconds[chosen]
    faster = f"{ratio:.1f}x faster than" if ratio > _NOISE else "as fast as"
    return chosen, f"{faster} {other} in a benchmark at startup"


class PaceWatch:
    """Detects, once per run, that updates are half as fast as before over several log intervals."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_INTERVALS)
        self._best, self._is_over = 0.0, False

    def has_halved(self, updates_per_second: float) -> bool:
        """Add a log interval's speed. Return True the first time the median falls to half of the best."""
        self._last.append(updates_per_second)
        if self._is_over or len(self._last) < _INTERVALS:
            return False
        pace = statistics.median(self._last)
        self._best = max(self._best, pace)
        self._is_over = pace <= self._best / 2
        return self._is_over
