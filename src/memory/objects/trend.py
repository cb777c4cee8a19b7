"""Two scans compared: which anchor grows, and whether it ever lets go of anything."""

from collections.abc import Iterable
from dataclasses import dataclass

from .anchors import Anchor


@dataclass(frozen=True, slots=True)
class Trend:
    """How one anchor changed between two scans."""

    owner: str
    nodes_per_step: float
    bytes_per_step: float
    pinned: bool
    """Whether the oldest node is the same as before: nothing is ever released. A window moves instead."""

    def text(self) -> str:
        """Return the change in words."""
        end = "its oldest node stays" if self.pinned else "its oldest node moves on, as in a window"
        return f"{self.nodes_per_step:+,.1f} nodes and {self.bytes_per_step:+,.0f} bytes a step; {end}"


def compare(before: Iterable[Anchor], after: Iterable[Anchor], steps: int) -> list[Trend]:
    """Return the trend of each owner that both scans name, the fastest growing first.

    Raises:
        ValueError: If no step lies between the scans.
    """
    if steps < 1:
        raise ValueError(f"steps between two scans must be at least 1, got {steps}.")
    earlier = {anchor.owner: anchor for anchor in before}
    trends = [
        Trend(
            owner=anchor.owner,
            nodes_per_step=(anchor.nodes - earlier[anchor.owner].nodes) / steps,
            bytes_per_step=(anchor.nbytes - earlier[anchor.owner].nbytes) / steps,
            pinned=anchor.oldest_sequence == earlier[anchor.owner].oldest_sequence,
        )
        for anchor in after
        if anchor.owner in earlier
    ]
    return sorted(trends, key=lambda trend: (-trend.bytes_per_step, -trend.nodes_per_step))
