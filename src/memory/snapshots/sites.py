"""Call-sites: which line of whose code a stack stands for, and stacks in the format of flame graphs."""

import re
from collections.abc import Mapping
from dataclasses import asdict

from torch.cuda import _memory_viz

from .schema import Frame, Stack
from .summary import SiteSizes

NO_STACK = "(no stack recorded)"
_LIBRARIES = ("torch/", "site-packages/", "dist-packages/", "<frozen ", "<string>", "importlib/")
_CALLERS = 2
_BACKWARD_NODE = re.compile(r"(\w+Backward\w*)::apply")
_OPERATOR = re.compile(r"at::_ops::(\w+)::call")


def site_label(stack: Stack) -> str:
    """Return the line that asked for memory, and the two that called it: 'rssm.py:142 observe < ...'.

    Lines of PyTorch, of other libraries and of the C++ unwinder are passed over, unless there are no others.
    A backward pass has no line of Python: its autograd node is named.
    """
    python = [frame for frame in stack if frame.filename.endswith(".py")]
    own = [frame for frame in python if not any(part in frame.filename for part in _LIBRARIES)]
    if shown := (own or python)[: 1 + _CALLERS]:
        return " < ".join(map(_frame_label, shown))
    for pattern in (_BACKWARD_NODE, _OPERATOR):
        for frame in stack:
            if found := pattern.search(frame.name):
                return f"{found[1]} (in C++)"
    return " < ".join(map(_frame_label, _worth_showing(stack)[: 1 + _CALLERS])) or NO_STACK


def frame_lines(stack: Stack) -> list[str]:
    """Return every frame of a stack that is worth a line, innermost first, with its whole path."""
    lines = [f"{frame.filename}:{frame.line} {frame.name}" for frame in _worth_showing(stack)]
    return lines or [NO_STACK]


def folded_stacks(sites: SiteSizes) -> str:
    """Return a line for each stack, 'outermost;...;innermost bytes', as flamegraph.pl takes it.

    `torch.cuda._memory_viz.memory` does it. It is given one block for each stack in place of a snapshot: of a
    snapshot it writes a line for each block, and for inactive blocks what they held last.
    """
    blocks = [
        {"state": "active", "size": total, "requested_size": total, "frames": _folded_frames(stack)}
        for stack, sizes in sites.items()
        if (total := site_bytes(sizes))
    ]
    snapshot = {"segments": [{"stream": "all", "blocks": blocks}]}
    return _memory_viz.memory(snapshot, format_flamegraph=lambda lines: lines)  # by default it downloads Perl


def site_bytes(sizes: Mapping[int, int]) -> int:
    """Return the bytes of blocks counted by size."""
    return sum(size * count for size, count in sizes.items())


def site_blocks(sizes: Mapping[int, int]) -> int:
    """Return the number of blocks counted by size."""
    return sum(sizes.values())


def _worth_showing(stack: Stack) -> Stack:
    """Return the frames outside the unwinder and the interpreter, or all if there are none."""
    kept = tuple(frame for frame in stack if _memory_viz._frame_filter(frame.name, frame.filename))
    return kept or stack


def _frame_label(frame: Frame) -> str:
    return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.line} {frame.name}"


def _folded_frames(stack: Stack) -> list[dict[str, object]]:
    """Return frames as the pickle had them, without the sign that separates them in a line."""
    return [
        {
            name: value.replace(";", ",") if isinstance(value, str) else value
            for name, value in asdict(f).items()
        }
        for f in stack
    ]
