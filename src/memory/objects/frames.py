"""The local variables of a frame, read without leaving anything behind in it."""

import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

_MAKES_SNAPSHOTS = sys.version_info < (3, 13)
_REFERENCES_OF_OURS = 3  # of the frame, of our variable, of the argument of getrefcount


def frame_locals(frame: FrameType) -> list[tuple[str, Any]]:
    """Return names and values of a function's local variables; [] for a frame of a module or a class body.

    Up to Python 3.12 reading `f_locals` makes a dictionary that stays in the frame and keeps the variables
    alive after the function has moved on. It is emptied again, unless somebody holds it (`locals()`).
    """
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return []  # `f_locals` is then the namespace itself
    variables = frame.f_locals
    pairs = list(variables.items())
    if _MAKES_SNAPSHOTS and sys.getrefcount(variables) == _REFERENCES_OF_OURS:
        variables.clear()
    return pairs


def running_frames() -> Iterator[FrameType]:
    """Yield the frames of all threads, the innermost first, without those of this module."""
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code.co_filename != __file__:
                yield frame
            frame = frame.f_back
