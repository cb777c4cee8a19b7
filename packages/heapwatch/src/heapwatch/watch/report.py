"""The report of a watch: as JSON, as an offline page, and as lines for a terminal."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..counters.glibc import in_use_source
from ..leaks.detector import WINDOW, watched_counters
from ..leaks.table import Finding
from ..leaks.verdict import TrendClass, TrendTest
from ..texts import count_text, write_whole
from .page import page

WATCH_JSON, WATCH_HTML = "watch.json", "watch.html"
_MOST_POINTS = 512
# Growth has ended once less than this fraction remains. More growth than this multiple of it is a leak.
_RELEASED, _REGROWN = 0.1, 1.5
_SHOWN = ("memory/", *(each.tag for each in watched_counters(0.0, on_cuda=True)))
_WORDS = {
    "leak": "Memory leaks.",
    "filling": "Memory is filling up to a known limit.",
    "flat": "Memory is flat.",
    "undecided": "No verdict yet. Run for longer, sample more often (--seconds), or count calls (--at).",
}
_LOADING = "  this may be data loading: to judge it, count calls with --at package.module:function"
VERSION = 1
"""Version of the format of `watch.json`."""
SAVED = "command started unit steps samples seconds own_seconds searches search_seconds longest_pause".split()
"""Fields of a report that `watch.json` contains unchanged."""


class Series:
    """Samples of all counters, thinned by half at 512 samples to bound the memory."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self._spacing = 1
        self._count = 0

    def add(self, step: int, seconds: float, counters: Mapping[str, float]) -> None:
        """Add a sample, unless thinning skips it. Tags of components begin with `memory/`."""
        if self._count % self._spacing == 0:
            if len(self.rows) == _MOST_POINTS:
                self.rows = self.rows[::2]
                self._spacing *= 2
            kept = {tag: round(number, 4) for tag, number in counters.items() if tag.startswith(_SHOWN)}
            self.rows.append({"step": step, "seconds": round(seconds, 3), **kept})
        self._count += 1


@dataclass(slots=True)
class TimedFinding:
    """A finding with the time of its first report, and whether it has ended since."""

    finding: Finding
    seconds: float
    """Seconds since the start of the watch."""
    ended: int | None = None
    """Step at which it had been flat over a whole window, or most of the growth had been released. `None`
    while it grows or has grown again."""
    low: float = math.inf
    """Lowest block median since the growth began, in bytes or counts."""
    high: float = -math.inf
    limit: float = -math.inf
    """Value above which growth after the end is a leak that never ends."""

    def follow(self, step: int, test: TrendTest) -> None:
        """Mark the end of the growth, such as of a full cache or an emptied buffer, and its return."""
        if self.ended is not None:
            if test.verdict is TrendClass.growing and test.last > self.limit:
                self.ended, self.limit = None, math.inf
        elif self.limit < math.inf:
            self.low, self.high = min(self.low, test.low), max(self.high, test.last)
            rise = self.high - self.low
            if test.last - self.low < _RELEASED * rise:
                self.ended, self.limit = step, test.last + _REGROWN * rise
            elif test.samples == WINDOW and test.verdict is TrendClass.flat:
                self.ended = step

    def text(self, verbose: bool = False) -> str:
        """Return the finding as lines, with a last line about its end if it has ended."""
        text = self.finding.text(verbose)
        if self.ended is not None:
            text += f"\n  it has ended by step {self.ended:,}"
        return text


@dataclass(frozen=True, slots=True)
class WatchReport:
    """The state of a watch at one moment."""

    command: str
    """Name and arguments of the program."""
    started: str
    """Local time with its time zone."""
    verdict: str
    findings: tuple[TimedFinding, ...]
    newest_allocations: tuple[str, ...]
    trends: Mapping[str, TrendTest]
    """Test of each counter over the current window."""
    series: Series = field(repr=False)
    holders: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]
    """Steps and bytes of each holder that a search has found, by kind of device, then by name."""
    steps: int
    unit: str
    """Unit of `steps`. It is not "steps" before the first optimizer step, when growth may be loading."""
    samples: int
    seconds: float
    own_seconds: float
    """Wall-clock seconds spent on samples."""
    searches: int
    search_seconds: float
    """Wall-clock seconds spent on heap searches, in addition to the samples."""
    longest_pause: float
    """Longest wall-clock seconds of a sample with its searches. The program pauses meanwhile."""

    def values(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        return {
            "version": VERSION,
            "verdict": self.verdict,
            "findings": [
                {
                    "step": each.finding.step,
                    "seconds": round(each.seconds, 2),
                    "verdict": each.finding.verdict.value,
                    "resource": each.finding.resource,
                    "messages": [message._asdict() for message in each.finding.messages],
                    "sources": list(each.finding.sources),
                    "growth": each.finding.growth.removeprefix(", "),
                    "ended": each.ended,
                }
                for each in self.findings
            ],
            "newest_allocations": list(self.newest_allocations),
            "counters": {
                name: {"verdict": test.verdict.value, "samples": test.samples}
                for name, test in self.trends.items()
            },
            **{name: getattr(self, name) for name in SAVED},
            "in_use_source": in_use_source(),
            "pid": os.getpid(),
            "series": self.series.rows,
            "holders": self.holders,
        }

    def lines(self, verbose: bool = False) -> list[str]:
        """Return the report as lines for a terminal. `verbose` adds the paths to the holders."""
        found = [line for each in self.findings for line in each.text(verbose).splitlines()]
        return [f"{_WORDS[self.verdict]} {self._summary()}", *found, *self._notes()]

    def _notes(self) -> list[str]:
        loading = [_LOADING] if self.unit != "steps" and self.findings else []
        return [*loading, *(f"  allocated at {line}" for line in self.newest_allocations)]

    def _summary(self) -> str:
        """Return the number of samples, the duration, and the cost of the watch."""
        share = self.own_seconds / self.seconds if self.seconds else 0.0
        # The clock of a program without optimizer steps has its own unit.
        steps = count_text(self.steps, "step") if self.unit == "steps" else f"{self.steps:,} {self.unit}"
        extent = f"{count_text(self.samples, 'sample')} in {steps} and {self.seconds:,.0f} s"
        searches = f"heap searches took {self.search_seconds:,.1f} s ({self.searches:,} of them)"
        pause = f"the longest pause was {self.longest_pause:,.1f} s"
        return f"{extent}; sampling took {share:.1%} of the time, {searches}, {pause}."

    def page(self) -> str:
        """Return the report as an offline HTML page, without scripts and with all text escaped."""
        leaks = (each.finding for each in self.findings if each.finding.verdict is TrendClass.leak)
        owners = dict.fromkeys(message.owner for each in leaks for message in each.messages if message.owner)
        is_leak = owners and self.verdict == TrendClass.leak.value
        verdict = f"Memory leaks in {' and '.join(owners)}." if is_leak else _WORDS[self.verdict]
        return page(self.values(), verdict, self._summary(), self._notes())


def write_report(report: WatchReport, folder: Path) -> None:
    """Write both files atomically: a process killed during a write leaves the previous files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((WATCH_JSON, json.dumps(report.values(), indent=1)), (WATCH_HTML, report.page())):
        write_whole(folder / name, text)
