"""Time the convolutions of encoder and decoder on a GPU: forward, input, weight and bias gradients.

    python convolutions.py

Each stage of the encoder has a row for its 5x5 convolution, one with channels padded to multiples of 8, and
one with blocks of 2x2 pixels ("s2d"). Batches have 1,024 images of 64 x 64 in bfloat16.
"""

from collections.abc import Callable

import torch
from torch.nn import functional as F

IMAGES, CALLS = 1024, 10


def milliseconds(call: Callable[[], object]) -> float:
    """Return the mean duration of a call."""
    for _ in range(3):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(CALLS):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / CALLS


def row(name: str, channels: int, out: int, side: int, kernel: int) -> None:
    """Print the times of one convolution with stride 1 and "same" padding."""
    like = {"device": "cuda", "dtype": torch.bfloat16}
    shapes = (IMAGES, channels, side, side), (out, channels, kernel, kernel)
    x, weight = (torch.randn(s, **like).to(memory_format=torch.channels_last) for s in shapes)
    bias, pad = torch.randn(out, **like), kernel // 2
    gradient = torch.randn_like(F.conv2d(x, weight, bias, padding=pad))

    def backward(*mask: bool) -> object:
        geometry = [1, 1], [pad, pad], [1, 1], False, [0, 0], 1
        return torch.ops.aten.convolution_backward(gradient, x, weight, [out], *geometry, [*mask])

    times = [milliseconds(lambda: F.conv2d(x, weight, bias, padding=pad))]
    times += [milliseconds(lambda i=i: backward(*(i == j for j in range(3)))) for i in range(3)]
    work = 2e-12 * IMAGES * side**2 * kernel**2 * channels * out
    rates = " ".join(f"{1e3 * work / t:.0f}" for t in times[:3])
    parts = " ".join(f"{n} {t:.3f}" for n, t in zip(("fwd", "dgrad", "wgrad", "bias"), times, strict=True))
    print(f"{name:28} {channels:4}->{out:4} {side:3} k{kernel}: {parts} ms   ({work:.3f} TF: {rates} TF/s)")


def main() -> None:
    """Time the convolutions of three model sizes."""
    for size, depth in (("1m", 4), ("12m", 16), ("200m", 64)):
        widths = (2 * depth, 3 * depth, 4 * depth, 4 * depth)
        for index, (channels, out) in enumerate(zip((3, *widths[:-1]), widths, strict=True)):
            side, padded = 64 >> index, (channels + -channels % 8, out + -out % 8)
            row(f"{size} enc{index + 1}", channels, out, side, 5)
            if padded != (channels, out):
                row(f"{size} enc{index + 1} pad", *padded, side, 5)
            row(f"{size} enc{index + 1} s2d", 4 * channels + -4 * channels % 8, 4 * out, side // 2, 3)
        for index, (channels, out) in enumerate(zip(widths[::-1], (*widths[-2::-1], 3), strict=True)):
            padded = channels + -channels % 8, 4 * out + -4 * out % 8
            row(f"{size} dec{index + 1}", channels, 4 * out, 4 << index, 3)
            if padded != (channels, 4 * out):
                row(f"{size} dec{index + 1} pad", *padded, 4 << index, 3)


if __name__ == "__main__":
    main()
