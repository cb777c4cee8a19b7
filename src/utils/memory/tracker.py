"""Which part of a run holds how much, how that changes, and what to think of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from .census import Census, Component, Size, take_census
from .config import MemoryConfig
from .detector import LeakDetector
from .table import MemoryReport, Row
from .verdict import Verdict
from .walk import resolve

_BYTES_PER_MB = 1e6
_NOTHING = Size(0, 0, ())
_TOTAL = "total"


@dataclass(slots=True)
class _Followed:
    """Numbers about one component; nothing of the component itself."""

    detector: LeakDetector
    size: Size = _NOTHING
    planned_bytes: int | None = None
    reported_bytes: int = 0
    is_gone: bool = False


class MemoryTracker:
    """Follows the sizes of a run's parts, and of objects that a user registers by path.

    It holds names, paths and numbers. What it measures is handed in at each sample and reached again from the
    run's roots, so an attribute that is bound anew is followed, one that appears later appears, and nothing
    is kept alive. Per component it holds a window of 96 samples, allocated once: 10,000 samples and reports
    add nothing.

    A registered object is measured by itself: what it holds may belong to one of the run's own components, too,
    so it is not part of the total.

    Args:
        config: `leak_threshold_mb` is the growth over the judged samples below which nothing is a leak.
    """

    def __init__(self, config: MemoryConfig) -> None:
        self._tolerance_bytes = config.leak_threshold_mb * _BYTES_PER_MB
        self._paths: dict[str, str] = {}
        self._followed: dict[str, _Followed] = {}
        self._total_bytes = self._reported_total_bytes = 0
        self._reported_step: int | None = None
        self._notes: tuple[str, ...] = ()

    def register(self, name: str, path: str, roots: Mapping[str, Any] | None = None) -> None:
        """Follow one more object, found anew at each sample.

        Args:
            name: Its name in the report and in the metrics; with `/`, a part of the object named before it.
            path: From the roots, such as `workflow.world_model.rssm._state` or `replay._arena`.
            roots: The roots as they are now, to check the path; None to find out at the first sample.

        Raises:
            UserError: If the name is taken or no name, or the path leads nowhere.
        """
        if not name or name != name.strip("/") or "//" in name:
            raise UserError(f"A memory component is named by words with `/` between them, got {name!r}.")
        if name in self._followed or name in self._paths or name == _TOTAL:
            raise UserError(
                f"The memory component `{name}` exists already. Register `{path}` under another name, such as "
                f"`my/{name}`."
            )
        if roots is not None:
            try:
                resolve(roots, path)
            except KeyError as error:
                raise UserError(f"The memory component `{name}` is not there: {error.args[0]}") from error
        self._paths[name] = path

    def sample(self, step: int, components: Mapping[str, Component], roots: Mapping[str, Any]) -> None:
        """Measure everything once; call it at equally spaced steps, at one fixed phase of the loop.

        Args:
            step: Agent steps taken so far.
            components: The run's own parts; `take_census` says what their order means.
            roots: Where the paths of registered objects begin.

        Raises:
            UserError: If a registered object has the name of one of the run's own components.

        Cost: that of `take_census`, once for the components and once for the registered objects.
        """
        for name in self._paths:
            if name in components:
                raise UserError(
                    f"The registered memory component `{name}` has the name of one of the run's own. "
                    f"Register it under another name, such as `my/{name}`."
                )
        own = take_census(components)
        registered = take_census(self._resolved(roots))
        self._total_bytes = own.total_bytes
        self._notes = (*_notes(own), *_notes(registered))
        sizes = own.sizes | registered.sizes
        for name, size in sizes.items():
            planned = components[name].planned_bytes if name in components else None
            self._follow(step, name, size, planned)
        for name in [*self._paths, *self._followed]:
            if name not in sizes:
                self._follow(step, name, _NOTHING, None)
                self._followed[name].is_gone = True
        # In the order of the census: wholes before their parts, also for what appeared later.
        self._followed = {name: self._followed[name] for name in (*sizes, *self._followed)}

    def restart(self, step: int, reason: str) -> None:
        """Judge only what comes after this event, after which more memory is normal; see `LeakDetector`."""
        for followed in self._followed.values():
            followed.detector.restart(step, reason)

    def report(self, step: int) -> MemoryReport:
        """Return the sizes of the last sample, and the growth since the report before.

        Components that are gone are shown once more, registered objects always.

        Cost: 0.2 ms a component.
        """
        since, self._reported_step = self._reported_step, step
        steps = step - since if since is not None else 0
        rows = tuple(self._row(name, steps) for name in self._followed)
        growth = self._total_bytes - self._reported_total_bytes if steps else 0
        self._reported_total_bytes = self._total_bytes
        size_mb, logical_mb = self._total_bytes / _BYTES_PER_MB, sum(
            row.logical_mb for row in rows if row.path is None and "/" not in row.name
        )
        return MemoryReport(step, rows, self._total_row(steps), self._notes)

    def alarms(self) -> list[str]:
        """Return the components whose last two judgements were `leak`."""
        return [name for name, followed in self._followed.items() if followed.detector.alarm]

    def nbytes(self) -> int:
        """Return the bytes of the windows; they change only with the number of components."""
        return sum(followed.detector.nbytes() for followed in self._followed.values())
