"""Memory guard of a training run, configured by `memory.*`."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from heapwatch.leaks.guard import MemoryGuard
from heapwatch.leaks.table import MemoryReport
from heapwatch.objects.census import Component

from .config import MemoryConfig, OnLeak
from .paging import driver_paging_warning

LEAK_EXIT_CODE = 3
_LOG = logging.getLogger(__name__)


class RunGuard(MemoryGuard):
    """Checks a run's memory as configured by `memory.*`. `memory.tracking_enabled=false` disables it.

    Args:
        config: The settings.
        events: Names of the first-time events of this run, as passed to `mark_first`.
    """

    def __init__(self, config: MemoryConfig, events: Sequence[str] = ()) -> None:
        super().__init__(
            events,
            threshold_mb=config.leak_threshold_mb,
            leak_share=config.leak_share,
            searches_graphs=config.check_interval > 0,
            log=_LOG,
        )
        self._config = config

    @property
    def must_stop(self) -> bool:
        """Whether a leak has been confirmed and `memory.on_leak=stop` is set."""
        return self.has_leak and self._config.on_leak is OnLeak.stop

    def report(self, step: int) -> MemoryReport | None:
        """Return each component's memory, or `None` if tracking is disabled."""
        return self.tracker.report(step) if self._config.tracking_enabled else None

    def sample(
        self,
        step: int,
        counters: dict[str, float],
        roots: Mapping[str, Any],
        components: Mapping[str, Component],
        is_after_pause: bool = False,
    ) -> dict[str, float]:
        """Take a sample at a fixed phase of the loop. Return additional values to log."""
        if not self._config.tracking_enabled:
            return {}
        if not self._samples and (warning := driver_paging_warning()):
            _LOG.warning(warning)
        return super().sample(step, counters, roots, components, is_after_pause)
