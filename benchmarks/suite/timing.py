"""Measure comparable times: alternate blocks of calls between variants, and exclude disturbed blocks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Protocol

import torch

from benchmarks.suite.load import DISTURBED_CPU, read_load

_PATIENCE = 2
"""Maximum number of rounds to get enough clean blocks, as a multiple of the requested rounds."""

MIN_CLEAN = 3
"""Minimum number of clean blocks for leaving out the disturbed ones."""


@dataclass(frozen=True, slots=True)
class Block:
    """Calls that were timed one after another."""

    seconds: list[float]
    """Seconds of each call."""

    others_cpu: float
    """CPU-seconds per second used by other processes during the block."""

    own_cpu: float = 0.0
    """CPU-seconds per call over all threads. They are far less sensitive to disturbance than wall time."""

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes used more than `DISTURBED_CPU`."""
        return self.others_cpu > DISTURBED_CPU

    def as_json(self) -> dict[str, Any]:
        """Return the block without its individual calls, of which there may be thousands."""
        spread = {"min": min(self.seconds), "median": median(self.seconds), "max": max(self.seconds)}
        return {
            "calls": len(self.seconds),
            "others_cpu": round(self.others_cpu, 3),
            **spread,
            "cpu": self.own_cpu,
        }


class Variant(Protocol):
    """One of the compared implementations."""

    name: str
    facts: dict[str, Any]
    """Facts reported by the variant: first-call time, versions, memory."""

    def warm_up(self) -> None:
        """Make the calls that are not timed."""
        ...

    def block(self, seconds: float) -> list[float]:
        """Call repeatedly for `seconds`, at least once, and return the seconds of each call."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


@dataclass(slots=True)
class Local:
    """A variant in this process.

    Args:
        name: Name of the variant.
        call: The function to time. Its result is discarded.
        device: Device of the call. On CUDA, device events time each call instead of the host's clock.
        warmup: Number of calls before the first timed call. The time of the first one is reported as
            `first_call_s`.
    """

    name: str
    call: Callable[[], Any]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    warmup: int = 1
    facts: dict[str, Any] = field(default_factory=dict)

    def warm_up(self) -> None:
        """See `Variant.warm_up`."""
        self.facts["first_call_s"] = self.block(0.0)[0]
        for _ in range(self.warmup - 1):
            self.call()

    def block(self, seconds: float) -> list[float]:
        """See `Variant.block`."""
        return (_cuda_seconds if self.device.type == "cuda" else _host_seconds)(self.call, seconds)

    def close(self) -> None:
        """Drop the references of the call."""
        del self.call


def interleave(variants: Sequence[Variant], rounds: int, block_seconds: float) -> dict[str, list[Block]]:
    """Measure the variants in turn (A B A B), so that drift affects all of them, and return the blocks.

    Args:
        variants: The compared variants.
        rounds: Number of clean blocks required per variant. At most twice as many are tried.
        block_seconds: Duration of a block in seconds, or one call if that is longer.
    """
    blocks: dict[str, list[Block]] = {variant.name: [] for variant in variants}
    for variant in variants:
        variant.warm_up()
    for done in range(_PATIENCE * rounds):
        if done >= rounds and all(len(_clean(taken)) >= rounds for taken in blocks.values()):
            break
        for variant in variants:
            before = read_load()
            seconds = variant.block(block_seconds)
            now = read_load()
            # Scale by the reported time instead of the block's, because a peer may report only a share of
            # each call.
            own_cpu = (now.own - before.own) / (now.clock - before.clock) * fmean(seconds)
            blocks[variant.name].append(Block(seconds, now.others_since(before), own_cpu))
    return blocks


def counted(blocks: Sequence[Block]) -> list[Block]:
    """Return the clean blocks, or all blocks if fewer than `MIN_CLEAN` are clean."""
    clean = _clean(blocks)
    return clean if len(clean) >= min(MIN_CLEAN, len(blocks)) else list(blocks)


def pair_ratios(blocks: Sequence[Block], base: Sequence[Block]) -> list[float]:
    """Return the ratio of two variants' medians per round, using only clean rounds if there are enough."""
    pairs = list(zip(blocks, base, strict=True))
    clean = [pair for pair in pairs if not any(block.is_disturbed for block in pair)]
    chosen = clean if len(clean) >= min(MIN_CLEAN, len(pairs)) else pairs
    return [median(block.seconds) / median(other.seconds) for block, other in chosen]


def _clean(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if not block.is_disturbed]


def _host_seconds(call: Callable[[], Any], seconds: float) -> list[float]:
    times = []
    end = time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        times.append(now - start)
        if now >= end:
            return times


def _cuda_seconds(call: Callable[[], Any], seconds: float) -> list[float]:
    """Time calls with device events. As in a training loop, the host is only a few calls ahead."""
    torch.cuda.synchronize()
    events = [_event()]
    end = time.perf_counter() + seconds
    while True:
        call()
        events.append(_event())
        if len(events) > 4:
            events[-4].synchronize()
        if time.perf_counter() >= end:
            break
    torch.cuda.synchronize()
    return [1e-3 * start.elapsed_time(stop) for start, stop in pairwise(events)]


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
