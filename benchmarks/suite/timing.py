"""Times that can be compared: blocks of calls, variants in turn, without blocks that others disturbed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Protocol

import torch

from benchmarks.suite.load import DISTURBED_CPU, read_load

_PATIENCE = 2
"""Rounds at most, in multiples of those asked for, until every variant has enough clean blocks."""

MIN_CLEAN = 3
"""Clean blocks from which on the disturbed ones are left out."""


@dataclass(frozen=True, slots=True)
class Block:
    """Calls that were timed one after another."""

    seconds: list[float]
    """Of each call."""

    others_cpu: float
    """CPU-seconds per second that other processes used meanwhile."""

    own_cpu: float = 0.0
    """CPU-seconds that a call took, over all threads: disturbed far less than its time."""

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes used more than `DISTURBED_CPU`."""
        return self.others_cpu > DISTURBED_CPU

    def as_json(self) -> dict[str, Any]:
        """Return the block without its single calls, which may be thousands."""
        spread = {"min": min(self.seconds), "median": median(self.seconds), "max": max(self.seconds)}
        return {
            "calls": len(self.seconds),
            "others_cpu": round(self.others_cpu, 3),
            **spread,
            "cpu": self.own_cpu,
        }


class Variant(Protocol):
    """One of the things that are compared."""

    name: str
    facts: dict[str, Any]
    """What it says about itself: the time of its first call, its versions, its memory."""

    def warm_up(self) -> None:
        """Make the calls that do not count."""
        ...

    def block(self, seconds: float) -> list[float]:
        """Call it for that long, at least once, and return the seconds of each call."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


@dataclass(slots=True)
class Local:
    """Something in this process.

    Args:
        name: Of the variant.
        call: What is timed, once per call; what it returns is dropped.
        device: On CUDA each call is timed by events of the device, not by the host's clock.
        warmup: Calls before the first timed one; the first is told as `first_call_s`.
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
        """Let go of what the call holds."""
        self.call = _closed


def interleave(variants: Sequence[Variant], rounds: int, block_seconds: float) -> dict[str, list[Block]]:
    """Return the blocks of every variant, measured in turn (A B A B), so that drift meets all alike.

    Args:
        variants: What is compared.
        rounds: Clean blocks wanted of each; at most twice as many are tried.
        block_seconds: How long a block lasts, or as long as one call takes.
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
            # Of the time, not of the block: a peer may tell only a share of each of its calls.
            own_cpu = (now.own - before.own) / (now.clock - before.clock) * fmean(seconds)
            blocks[variant.name].append(Block(seconds, now.others_since(before), own_cpu))
    return blocks


def counted(blocks: Sequence[Block]) -> list[Block]:
    """Return the clean blocks, or all of them where fewer than `MIN_CLEAN` are clean."""
    clean = _clean(blocks)
    return clean if len(clean) >= min(MIN_CLEAN, len(blocks)) else list(blocks)


def pair_ratios(blocks: Sequence[Block], base: Sequence[Block]) -> list[float]:
    """Return the ratio of two variants' medians in each round in which both were clean, else in all."""
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
    """Time by events; the host runs ahead of the device by a few calls only, as a training loop does."""
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


def _closed() -> None:
    raise RuntimeError("This variant is closed.")
