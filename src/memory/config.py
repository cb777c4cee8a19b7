"""Settings of the memory instruments."""

from dataclasses import dataclass
from enum import Enum

from ..utils.errors import require_range


class OnLeak(Enum):
    """How a run reacts to a confirmed leak."""

    warn = "warn"
    stop = "stop"


class OnPlan(Enum):
    """How a run reacts if its planned memory exceeds the limit."""

    refuse = "refuse"
    warn = "warn"


@dataclass(kw_only=True, slots=True)
class MemoryConfig:
    """Settings of the memory plan, tracker, verdicts and snapshots. An interval of 0 disables the feature."""

    plan: OnPlan = OnPlan.refuse
    """Reject a run whose planned memory exceeds the limit, or only warn."""
    tracking_enabled: bool = True
    """Track the sizes of the run's components and check them for leaks."""
    report_interval: int = 10_000
    """Agent steps between reports of each component's memory."""
    leak_threshold_mb: float = 1.0
    """Minimum change over the judged window, in MB of 1e6 bytes, that counts as growth (`classify_trend` in
    `heapwatch/leaks/verdict.py`)."""
    leak_share: float = 0.05
    """Fraction of the free memory, in [0, 1], that steady growth must use up before it counts as a leak.
    Growth with a known holder also counts after 480 samples. With 0, any growth counts immediately."""
    check_interval: int = 100
    """Updates between searches for autograd graphs that outlive their update."""
    on_leak: OnLeak = OnLeak.warn
    """Log a warning or stop the run after a confirmed leak or a graph that outlives its update."""
    snapshot_interval: int = 0
    """Agent steps between CUDA memory snapshots. Ignored without CUDA."""

    def __post_init__(self) -> None:
        require_range("memory", self, "report_interval", "check_interval", "snapshot_interval", ge=0)
        require_range("memory", self, "leak_threshold_mb", gt=0)
        require_range("memory", self, "leak_share", ge=0, le=1)
