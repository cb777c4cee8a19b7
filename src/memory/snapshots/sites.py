"""Call-sites: which line of whose code allocated memory, and what changed there between two snapshots.

`torch.cuda._memory_viz.compare` is not used: it compares whole segments by address, so what changes inside a
segment does not show.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch.cuda import _memory_viz

NO_STACK = "(no stack recorded)"
_LIBRARIES = ("torch/", "site-packages/", "dist-packages/", "<frozen ", "<string>", "importlib/")
_CALLERS = 2


class Frame(NamedTuple):
    """One line of a stack."""

    filename: str
    line: int
    name: str

    @property
    def label(self) -> str:
        """Its file without the folders, its line and its function: 'rssm.py:142 observe'."""
        return f"{self.filename.rsplit('/', 1)[-1]}:{self.line} {self.name}"


Stack = tuple[Frame, ...]
"""Where memory was allocated, innermost first; empty where no stack was recorded."""

SiteSizes = Mapping[Stack, Mapping[int, int]]
"""Of each stack, how many active blocks of each size in bytes it allocated."""


def site_label(stack: Stack) -> str:
    """Return the line that asked for memory, and the two that called it: 'rssm.py:142 observe < ...'.

    Lines of PyTorch and of other libraries are skipped, unless there are no others.
    """
    python = [frame for frame in stack if frame.filename.endswith(".py")]
    own = [frame for frame in python if not any(part in frame.filename for part in _LIBRARIES)]
    shown = own or python or _worth_showing(stack)
    return " < ".join(frame.label for frame in shown[: 1 + _CALLERS]) or NO_STACK


def frame_lines(stack: Stack) -> list[str]:
    """Return every frame of a stack that is worth a line, innermost first, with its whole path."""
    lines = [f"{frame.filename}:{frame.line} {frame.name}" for frame in _worth_showing(stack)]
    return lines or [NO_STACK]


def _worth_showing(stack: Stack) -> list[Frame]:
    """Return the frames outside the unwinder and the interpreter, or all if there are none."""
    return [f for f in stack if _memory_viz._frame_filter(f.name, f.filename)] or list(stack)


@dataclass(frozen=True, slots=True)
class SiteChange:
    """A call-site in two snapshots.

    Blocks are distinguished by stack and size, not by address: a tensor made anew each step in another place
    is no change.
    """

    stack: Stack
    blocks_before: int
    blocks_after: int
    bytes_before: int
    bytes_after: int
    new_blocks: int
    """Blocks after without one of the same size before."""

    freed_blocks: int
    """Blocks before without one of the same size after."""

    @property
    def bytes_more(self) -> int:
        """Bytes after less bytes before."""
        return self.bytes_after - self.bytes_before

    @property
    def change(self) -> str:
        """`new`, `freed`, `grown`, `shrunk`, or `same`: as many bytes in blocks of other sizes."""
        if not self.blocks_before:
            return "new"
        if not self.blocks_after:
            return "freed"
        if not self.bytes_more:
            return "same"
        return "grown" if self.bytes_more > 0 else "shrunk"


def compare(before: SiteSizes, after: SiteSizes) -> list[SiteChange]:
    """Return the call-sites whose blocks changed, those that grew most first.

    Args:
        before: Active blocks of the first snapshot, by stack and size.
        after: Those of the second.
    """
    changes = []
    for stack in {**before, **after}:
        old, new = Counter(before.get(stack, {})), Counter(after.get(stack, {}))
        if old != new:
            changes.append(
                SiteChange(
                    stack,
                    blocks_before=old.total(),
                    blocks_after=new.total(),
                    bytes_before=_total_bytes(old),
                    bytes_after=_total_bytes(new),
                    new_blocks=(new - old).total(),
                    freed_blocks=(old - new).total(),
                )
            )
    return sorted(changes, key=lambda change: change.bytes_more, reverse=True)


def _total_bytes(sizes: Mapping[int, int]) -> int:
    return sum(size * count for size, count in sizes.items())
