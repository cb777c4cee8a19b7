"""Measure the machine's rates for products, convolutions and copies, as lower bounds for all times."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# Seconds spent on each rate. The fastest call counts.
_SECONDS = 0.5
_CHANNELS = (32, 64, 128)
"""Channels of the tested convolutions, 5 x 5 on images of 16 x 16."""


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations of one call. A multiplication and an addition count as two."""

    conv_flops: int
    matmul_flops: int


@dataclass(frozen=True, slots=True)
class Rates:
    """The best rates measured with the run's threads and precision."""

    matmul_flops_per_s: float
    conv_flops_per_s: float
    copy_bytes_per_s: float
    """Bytes of the source per second. Reading and writing together transfer twice as many bytes."""

    def seconds_of(self, work: Work) -> float:
        """Return the seconds for the work at the higher FLOP rate. Other operations count as free."""
        best = max(self.matmul_flops_per_s, self.conv_flops_per_s)
        return (work.conv_flops + work.matmul_flops) / best

    def best_of(self, other: "Rates") -> "Rates":
        """Return the better rate of each kind."""
        return Rates(*(max(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)))


def measure_rates(device: torch.device, dtype: torch.dtype, quick: bool) -> Rates:
    """Measure a large matrix product, the best of three convolutions, and a large copy.

    This takes 3 s. `quick` uses small sizes and is almost instant.
    """
    is_cuda = device.type == "cuda"
    size, images = (256, 2) if quick else (8192, 1024) if is_cuda else (2048, 64)
    seconds = 0.0 if quick else _SECONDS
    copied = torch.empty(2**20 if quick else 2**28, dtype=torch.uint8, device=device).zero_()
    target = torch.empty_like(copied).zero_()
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def conv_rate(channels: int) -> float:
        x = torch.randn(images, channels, 16, 16, device=device, dtype=dtype)
        weight = torch.randn(channels, channels, 5, 5, device=device, dtype=dtype)
        x, weight = (t.contiguous(memory_format=torch.channels_last) for t in (x, weight))
        flops = 2 * weight.numel() * images * 16 * 16
        return flops / _best(lambda: F.conv2d(x, weight, padding=2), device, seconds)

    with torch.no_grad():
        return Rates(
            matmul_flops_per_s=2 * size**3 / _best(lambda: a @ b, device, seconds),
            conv_flops_per_s=max(map(conv_rate, _CHANNELS)),
            copy_bytes_per_s=copied.numel() / _best(lambda: target.copy_(copied), device, seconds),
        )


def count_work(call: Callable[[], Any]) -> Work:
    """Return the operations in one call. Compiled parts run in eager mode for this purpose."""
    with torch.compiler.set_stance("force_eager"), _FlopCounter() as counter:
        call()
    return Work(counter.conv_flops, counter.matmul_flops)


class _FlopCounter(TorchDispatchMode):
    """Adds up the cost of all operators by torch's own formulas.

    torch's `FlopCounterMode` also follows modules through autograd, and fails if a step without gradients
    runs inside a step with gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv_flops = self.matmul_flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            flops = formula(*args, **(kwargs or {}), out_val=result)
            if "convolution" in str(func):
                self.conv_flops += flops
            else:
                self.matmul_flops += flops
        return result


def _best(call: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Return the seconds of the fastest of at least three calls."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)
