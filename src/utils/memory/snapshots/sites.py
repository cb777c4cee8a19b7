"""Call-sites: which line of whose code a stack stands for, and stacks in the format of flame graphs."""

from collections.abc import Mapping
from dataclasses import asdict

from torch.cuda import _memory_viz

from .schema import Frame, Stack
from .summary import SiteSizes

NO_STACK = "(no stack recorded)"
_LIBRARIES = ("torch/", "site-packages/", "dist-packages/", "<frozen ", "<string>", "importlib/")
_CALLERS = 2


def site_label(stack: Stack) -> str:
    """Return the line that asked for memory, and the two that called it: 'rssm.py:142 observe < ...'.

    Lines of PyTorch, of other libraries and of the C++ unwinder are passed over, unless there are no others.
    """
    python = [frame for frame in stack if _is_python(frame)]
    own = [frame for frame in python if not any(part in frame.filename for part in _LIBRARIES)]
    shown = (own or python or list(stack))[: 1 + _CALLERS]
    return " < ".join(map(_frame_label, shown)) or NO_STACK


def frame_lines(stack: Stack) -> list[str]:
    """Return every frame of a stack that is worth a line, innermost first, with its whole path."""
    kept = [frame for frame in stack if _memory_viz._frame_filter(frame.name, frame.filename)]
    return [f"{frame.filename}:{frame.line} {frame.name}" for frame in kept or stack] or [NO_STACK]


def folded_stacks(sites: SiteSizes) -> str:
    """Return one line for each stack, 'outermost;...;innermost bytes', for flamegraph.pl.

    `torch.cuda._memory_viz.memory` does it. It is given one block for each stack, in place of a snapshot: of a
    snapshot it writes a line for each block, and for inactive blocks what they last held.
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


def _is_python(frame: Frame) -> bool:
    return frame.filename.endswith(".py")


def _frame_label(frame: Frame) -> str:
    return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.line} {frame.name}"


def _folded_frames(stack: Stack) -> list[dict[str, object]]:
    """Return frames as the pickle had them, without the character that separates them in a folded line."""
    return [
        {
            key: value.replace(";", ",") if isinstance(value, str) else value
            for key, value in asdict(frame).items()
        }
        for frame in stack
    ]
