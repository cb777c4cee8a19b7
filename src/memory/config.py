"""Settings of the memory instruments."""

from dataclasses import dataclass
from enum import Enum

from ..utils.errors import require_range


class OnLeak(Enum):
    """What a run does when a leak is certain."""

    warn = "warn"
    stop = "stop"


class OnPlan(Enum):
    """What happens before a run that needs more memory than there is."""

    refuse = "refuse"
    warn = "warn"


@dataclass(kw_only=True, slots=True)
class MemoryConfig:
    """Settings of plan, tracker, verdict and snapshots (`configs/memory/*.yaml`). An interval of 0: never."""

    plan: OnPlan = OnPlan.refuse
    """Whether a run whose plan is over the limit is refused, or only warned of."""
    tracking_enabled: bool = True
    """Whether the sizes of the run's parts are followed and judged."""
    report_interval: int = 10_000
    """Agent steps between reports of what holds what."""
    leak_threshold_mb: float = 1.0
    """Growth over the judged window, in MB of 1e6 bytes, below which nothing counts as growing
    (`classify_trend` in `heapwatch/leaks/verdict.py`)."""
    leak_share: float = 0.05
    """Share of the memory that is left, in [0, 1], which steady growth has to take before it is a leak for
    certain. Growth that has a name is one after 480 samples, too; with 0 any growth is one at once."""
    check_interval: int = 100
    """Updates between searches for autograd graphs that outlive their update."""
    on_leak: OnLeak = OnLeak.warn
    """Whether a certain leak, or a graph that outlives its update, is logged or ends the run."""
    snapshot_interval: int = 0
    """Agent steps between CUDA memory snapshots; without CUDA there are none."""

    def __post_init__(self) -> None:
        require_range("memory", self, "report_interval", "check_interval", "snapshot_interval", ge=0)
        require_range("memory", self, "leak_threshold_mb", gt=0)
        require_range("memory", self, "leak_share", ge=0, le=1)
