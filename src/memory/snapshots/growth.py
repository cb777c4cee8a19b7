"""Measure how fast memory grows over a series of snapshots, from which call-sites, and classify_trend it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...utils.errors import UserError
from ..config import MemoryConfig
from ..leaks.verdict import TrendClass, TrendTest, classify_trend
from .sites import SiteChange, compare
from .summary import Summary, read_summary

_FILE_NAME = re.compile(r"snapshot_step_(0|[1-9][0-9]{0,17})\.pickle")
TOLERANCE_BYTES = MemoryConfig().leak_threshold_mb * 1e6


@dataclass(frozen=True, slots=True)
class Growth:
    """A series of snapshots, judged."""

    summaries: tuple[Summary, ...]
    """One of each snapshot, by rising step."""

    active: TrendTest
    reserved: TrendTest
    verdict: TrendClass
    """That of active bytes; `retention` where these are flat while reserved bytes rise."""

    bytes_per_step: float
    """Median slope of active bytes between any two snapshots (Theil-Sen); 0 for one snapshot."""

    blocks_per_step: float
    sites: tuple[SiteChange, ...]
    """From the first snapshot to the last, what grew most first."""

    holders: tuple[SiteChange, ...]
    """All that the last snapshot holds, against nothing, the largest first."""


def find_snapshots(folder: Path) -> dict[int, Path]:
    """Return the files snapshot_step_<N>.pickle of a folder by rising N; other files are skipped.

    Raises:
        UserError: If the folder cannot be read or has no such file.
    """
    try:
        matches = [(_FILE_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    except OSError as error:
        raise UserError(f"--snapshots-dir {folder} cannot be read: {error.strerror}.") from error
    found = {int(match[1]): path for match, path in matches if match}
    if not found:
        raise UserError(
            f"--snapshots-dir {folder} holds no snapshot_step_<N>.pickle. On CUDA a run saves them, with "
            "memory.snapshot_interval=1000, in its memory_snapshots/."
        )
    return dict(sorted(found.items()))


def read_series(files: dict[int, Path]) -> list[Summary]:
    """Return the summary of each file; one snapshot at a time is in memory.

    Raises:
        UserError: At the first file that is not a snapshot.
    """
    return [read_summary(path, step) for step, path in files.items()]


def measure_growth(summaries: Sequence[Summary], tolerance_bytes: float = TOLERANCE_BYTES) -> Growth:
    """Judge a series of at least one snapshot, by rising step.

    `classify_trend` assumes equal distances between steps; 24 snapshots say more than `undecided`.

    Args:
        summaries: The series.
        tolerance_bytes: Growth over the judged snapshots below which nothing is called a leak.
    """
    active = classify_trend([summary.active_bytes for summary in summaries], tolerance_bytes)
    reserved = classify_trend([summary.reserved_bytes for summary in summaries], tolerance_bytes)
    is_retention = active.verdict is TrendClass.flat and reserved.verdict is TrendClass.growing
    steps = [summary.step for summary in summaries]
    return Growth(
        summaries=tuple(summaries),
        active=active,
        reserved=reserved,
        verdict=TrendClass.retention if is_retention else active.verdict,
        bytes_per_step=_slope(steps, [summary.active_bytes for summary in summaries]),
        blocks_per_step=_slope(steps, [summary.active_blocks for summary in summaries]),
        sites=tuple(compare(summaries[0].sites, summaries[-1].sites)),
        holders=tuple(compare({}, summaries[-1].sites)),
    )


def _slope(steps: Sequence[int], values: Sequence[int]) -> float:
    """Return the median slope between any two points; 0 for one point."""
    earlier, later = np.triu_indices(len(steps), 1)
    if not len(earlier):
        return 0.0
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    return float(np.median((y[later] - y[earlier]) / (x[later] - x[earlier])))
