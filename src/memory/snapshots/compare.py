"""What changed between two snapshots, by call-site.

`torch.cuda._memory_viz.compare` is not used: it compares whole segments by address, so what changes inside a
segment does not show, and it prints.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from .schema import Stack
from .sites import site_blocks, site_bytes
from .summary import SiteSizes


class Change(StrEnum):
    """What became of a call-site's memory."""

    new = "new"
    grown = "grown"
    same = "same"
    """As many bytes in blocks of other sizes."""
    shrunk = "shrunk"
    freed = "freed"


@dataclass(frozen=True, slots=True)
class SiteChange:
    """A call-site in two snapshots.

    Blocks are told apart by stack and size, not by address: a tensor made anew each step in another place
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
    def change(self) -> Change:
        """What became of it."""
        if not self.blocks_before:
            return Change.new
        if not self.blocks_after:
            return Change.freed
        if not self.bytes_more:
            return Change.same
        return Change.grown if self.bytes_more > 0 else Change.shrunk


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
                    blocks_before=site_blocks(old),
                    blocks_after=site_blocks(new),
                    bytes_before=site_bytes(old),
                    bytes_after=site_bytes(new),
                    new_blocks=site_blocks(new - old),
                    freed_blocks=site_blocks(old - new),
                )
            )
    return sorted(changes, key=lambda change: change.bytes_more, reverse=True)
