"""The report of a watch: as JSON, as an offline page, and as lines for a terminal."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from ..counters.glibc import in_use_source
from ..leaks.detector import BEYOND_COMPONENTS, watched_counters
from ..leaks.table import Finding
from ..leaks.verdict import TrendTest
from ..texts import aligned, count_text, write_whole

WATCH_JSON, WATCH_HTML = "watch.json", "watch.html"
_MOST_POINTS = 512
_WIDTH, _HEIGHT = 560, 110
_SHOWN = {
    each.tag: each.name.removesuffix(BEYOND_COMPONENTS) + (", MB" if each.unit == "MB" else "")
    for each in watched_counters(0.0, on_cuda=True)
}
_WORDS = {
    "leak": "Memory leaks.",
    "filling": "Memory grows until something with a capacity is full.",
    "flat": "Memory is flat.",
    "undecided": "Not enough samples for a verdict. Let the program run for longer, or sample more often.",
}
_LOADING = "  this may be loading: to judge it, count calls of a function with --at package.module:function"
_NUMBERS = ("steps", "samples", "seconds", "own_seconds", "searches", "search_seconds")
# The page must not load anything.
_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>heapwatch</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body { max-width: 1240px; margin: 0 auto; padding: 32px 24px; font: 15px/1.5 system-ui, sans-serif; }
pre { white-space: pre-wrap; }
</style></head><body>"""


class Series:
    """Samples of all counters, thinned by half at 512 samples to bound the memory."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self._spacing = 1
        self._count = 0

    def add(self, step: int, seconds: float, counters: Mapping[str, float]) -> None:
        """Add a sample, unless thinning skips it."""
        if self._count % self._spacing == 0:
            if len(self.rows) == _MOST_POINTS:
                self.rows = self.rows[::2]
                self._spacing *= 2
            kept = {tag: round(counters[tag], 4) for tag in _SHOWN if tag in counters}
            self.rows.append({"step": step, "seconds": round(seconds, 3), **kept})
        self._count += 1


@dataclass(slots=True)
class TimedFinding:
    """A finding with the time of its first report, and whether it has ended since."""

    finding: Finding
    seconds: float
    """Seconds since the start of the watch."""
    step: int
    ended: int | None = None
    """Step at which it had been flat over a whole window, or `None` while it grows or has grown again."""
    has_returned: bool = False
    """Whether it grew again after it had ended. Such a finding never ends."""

    def text(self, verbose: bool = False) -> str:
        """Return the finding as lines, with a last line about its end if it has ended."""
        text = self.finding.text(verbose)
        if self.ended is not None:
            text += f"\n  it has ended: flat over the samples up to step {self.ended:,}"
        return text


@dataclass(frozen=True, slots=True)
class WatchReport:
    """The state of a watch at one moment."""

    verdict: str
    is_loading: bool
    """Whether no optimizer has stepped yet, so that growth may be loading."""
    findings: tuple[TimedFinding, ...]
    newest_allocations: tuple[str, ...]
    trends: Mapping[str, TrendTest]
    """Test of each counter over the current window."""
    series: Series = field(repr=False)
    steps: int
    unit: str
    samples: int
    seconds: float
    own_seconds: float
    """Wall-clock seconds spent on samples."""
    searches: int
    search_seconds: float
    """Wall-clock seconds spent on heap searches, in addition to the samples."""

    def values(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        return {
            "verdict": self.verdict,
            "findings": [
                {
                    "step": each.step,
                    "seconds": round(each.seconds, 2),
                    "verdict": each.finding.verdict.value,
                    "resource": each.finding.resource,
                    "messages": list(each.finding.messages),
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
            **{name: round(getattr(self, name), 3) for name in _NUMBERS},
            "unit": self.unit,
            "in_use_source": in_use_source(),
            "pid": os.getpid(),
            "series": self.series.rows,
        }

    def lines(self, verbose: bool = False) -> list[str]:
        """Return the report as lines for a terminal. `verbose` adds the paths to the holders."""
        share = self.own_seconds / self.seconds if self.seconds else 0.0
        # The clock of a program without optimizer steps has its own unit.
        steps = count_text(self.steps, "step") if self.unit == "steps" else f"{self.steps:,} {self.unit}"
        extent = f"{count_text(self.samples, 'sample')} in {steps} and {self.seconds:,.0f} s"
        searches = f"heap searches took {self.search_seconds:,.1f} s ({self.searches:,} of them)"
        cost = f"sampling took {share:.1%} of the time, {searches}"
        found = [line for each in self.findings for line in each.text(verbose).splitlines()]
        traced = [f"  allocated at {line}" for line in self.newest_allocations]
        loading = [_LOADING] if self.is_loading and self.findings else []
        return [f"{_WORDS[self.verdict]} {extent}; {cost}.", *found, *loading, *traced]

    def page(self) -> str:
        """Return the report as an offline HTML page, without scripts and with all text escaped."""
        text = "\n".join(self.lines(verbose=True))
        rows = [(name, test.verdict.value, str(test.samples)) for name, test in self.trends.items()]
        headings = ("counter", "verdict of the samples judged now", "samples")
        counters = "\n".join(aligned([headings, *rows], headings[:2]))
        body = [f"<h1>{escape(_WORDS[self.verdict])}</h1>", f"<pre>{escape(text)}</pre>"]
        body += ["<h2>Counters</h2>", f"<pre>{escape(counters)}</pre>"]
        body += [self._curve(tag, name) for tag, name in _SHOWN.items()]
        return "\n".join([_HEAD, *body, "</body></html>\n"])

    def _curve(self, tag: str, name: str) -> str:
        """Return a counter over time as SVG, or "" if it is not available or always 0."""
        points = [(row["seconds"], row[tag]) for row in self.series.rows if tag in row]
        values = [value for _, value in points]
        if not any(values):
            return ""
        low, high, begin = min(values), max(values), points[0][0]
        box = f"{begin} {-high} {max(points[-1][0] - begin, 1e-9)} {max(high - low, 1e-9)}"
        path = " ".join(f"{at},{-value}" for at, value in points)
        line = f"<polyline points='{path}' fill='none' stroke='#1f5fbf' vector-effect='non-scaling-stroke'/>"
        shape = f"viewBox='{box}' preserveAspectRatio='none' width='{_WIDTH}' height='{_HEIGHT}'"
        picture = f"<svg {shape} role='img' aria-label='{escape(name)}'>{line}</svg>"
        return f"<p>{escape(name)}: {low:,.2f} to {high:,.2f}</p>{picture}"


def write_report(report: WatchReport, folder: Path) -> None:
    """Write both files atomically: a process killed during a write leaves the previous files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((WATCH_JSON, json.dumps(report.values(), indent=1)), (WATCH_HTML, report.page())):
        write_whole(folder / name, text)
