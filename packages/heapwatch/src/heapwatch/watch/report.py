"""What a watch has seen: as JSON, as a page that opens offline, and as lines for a terminal."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from ..counters.glibc import in_use_source
from ..html_page import cards, document, table
from ..leaks.table import Finding
from ..leaks.verdict import TrendTest
from ..texts import count_text, write_whole

WATCH_JSON, WATCH_HTML = "watch.json", "watch.html"
_MOST_POINTS = 512
_WIDTH, _HEIGHT = 560, 110
_SHOWN = {
    "debug/cpu/in_use_mb": "host memory in use, MB",
    "debug/cpu/rss_anon_mb": "resident private memory, MB",
    "debug/gpu/alloc_mb": "GPU memory in use, MB",
    "debug/gpu/reserved_mb": "GPU memory reserved, MB",
    "debug/cpu/rss_shmem_mb": "shared memory, MB",
    "debug/cpu/open_files_count": "open files",
    "debug/cpu/threads_count": "threads",
    "debug/cpu/children_count": "child processes",
}
_WORDS = {
    "leak": "Memory leaks.",
    "filling": "Memory grows until something with a capacity is full.",
    "flat": "Memory is flat.",
    "undecided": "Not enough samples for a verdict: let the program run for longer.",
}


_LOADING = (
    "  no optimiser has stepped, so this may be loading: to judge it, count calls of a function with "
    "--at package.module:function"
)


class Series:
    """Samples of all counters, thinned by half whenever there are 512: its memory is bounded."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self._spacing = 1
        self._count = 0

    def add(self, step: int, seconds: float, counters: Mapping[str, float]) -> None:
        """Add a sample, unless it is thinned out."""
        if self._count % self._spacing == 0:
            if len(self.rows) == _MOST_POINTS:
                self.rows = self.rows[::2]
                self._spacing *= 2
            kept = {tag: round(counters[tag], 4) for tag in _SHOWN if tag in counters}
            self.rows.append({"step": step, "seconds": round(seconds, 3), **kept})
        self._count += 1


@dataclass(frozen=True, slots=True)
class TimedFinding:
    """A finding, and when it was made first."""

    finding: Finding
    seconds: float
    """Since the watch began."""
    step: int
    ended: int | None = None
    """The step at which it had been flat over a whole window; None while it grows, or once it grew again."""

    def text(self) -> str:
        """Return the finding as lines, the last one of its end if it has ended."""
        end = (
            "" if self.ended is None else f"\n  it has ended: flat over the samples up to step {self.ended:,}"
        )
        return self.finding.text() + end


@dataclass(frozen=True, slots=True)
class WatchReport:
    """What is known at one moment."""

    verdict: str
    is_loading: bool
    """Whether no optimiser has stepped yet, so that growth may be loading."""
    findings: tuple[TimedFinding, ...]
    newest_allocations: tuple[str, ...]
    trends: Mapping[str, TrendTest]
    """Of each counter, over the samples that are judged now."""
    series: Series = field(repr=False)
    steps: int
    unit: str
    samples: int
    seconds: float
    own_seconds: float
    """Wall-clock time that samples took."""
    searches: int
    search_seconds: float
    """Wall-clock time that searches of the heap took, on top of the samples."""

    def values(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {
            "verdict": self.verdict,
            "findings": [
                {
                    "step": each.step,
                    "seconds": round(each.seconds, 2),
                    "verdict": each.finding.verdict.value,
                    "resource": each.finding.resource,
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
            "steps": self.steps,
            "unit": self.unit,
            "samples": self.samples,
            "seconds": round(self.seconds, 3),
            "own_seconds": round(self.own_seconds, 3),
            "searches": self.searches,
            "search_seconds": round(self.search_seconds, 3),
            "in_use_source": in_use_source(),
            "pid": os.getpid(),
            "series": self.series.rows,
        }

    def lines(self) -> list[str]:
        """Return it as lines for a terminal."""
        share = self.own_seconds / self.seconds if self.seconds else 0.0
        # The clock of a program without optimiser steps has a unit of its own.
        steps = count_text(self.steps, "step") if self.unit == "steps" else f"{self.steps:,} {self.unit}"
        extent = f"{count_text(self.samples, 'sample')} in {steps} and {self.seconds:,.0f} s"
        cost = f"sampling took {share:.1%} of the time, {self._searches()}"
        found = [line for each in self.findings for line in each.text().splitlines()]
        traced = [f"  allocated at {line}" for line in self.newest_allocations]
        loading = [_LOADING] if self.is_loading and self.findings else []
        return [f"{_WORDS[self.verdict]} {extent}; {cost}.", *found, *loading, *traced]

    def _searches(self) -> str:
        return f"heap searches took {self.search_seconds:,.1f} s ({self.searches:,} of them)"

    def page(self) -> str:
        """Return it as HTML."""
        facts = {
            "verdict": self.verdict,
            self.unit: f"{self.steps:,}",
            "samples": f"{self.samples:,}",
            "seconds": f"{self.seconds:,.0f}",
            "of that, sampling": f"{self.own_seconds:,.2f}",
            "searches of the heap": f"{self.searches}, {self.search_seconds:,.1f} s",
        }
        body = [f"<h1>{escape(_WORDS[self.verdict])}</h1>", cards(facts)]
        if self.findings:
            body.append("<h2>What was found</h2>")
            body += [f"<pre>{escape(each.text())}</pre>" for each in self.findings]
        if self.newest_allocations:
            body.append("<h2>Lines that allocated what is alive</h2>")
            body.append(f"<pre>{escape(chr(10).join(self.newest_allocations))}</pre>")
        body.append("<h2>Counters</h2>")
        rows = [
            [escape(name), escape(test.verdict.value), str(test.samples)]
            for name, test in self.trends.items()
        ]
        body.append(table(("counter", "verdict of the samples judged now", "samples"), rows))
        body += [self._curve(tag, name) for tag, name in _SHOWN.items()]
        return document("heapwatch", body, "pre { white-space: pre-wrap; } svg { background: #fff; }")

    def _curve(self, tag: str, name: str) -> str:
        """Return a counter over time as a picture; empty for one that is not counted or stays 0."""
        points = [(row["seconds"], row[tag]) for row in self.series.rows if tag in row]
        values = [value for _, value in points]
        if not any(values):
            return ""
        low, high = min(values), max(values)
        width, height = max(points[-1][0] - points[0][0], 1e-9), max(high - low, 1e-9)
        path = " ".join(
            f"{_WIDTH * (at - points[0][0]) / width:.1f},{_HEIGHT * (1 - (value - low) / height):.1f}"
            for at, value in points
        )
        line = f"<polyline fill='none' stroke='#1f5fbf' stroke-width='1.5' points='{path}'/>"
        box = f"-4 -4 {_WIDTH + 8} {_HEIGHT + 8}"
        picture = f"<svg viewBox='{box}' width='{_WIDTH}' role='img' aria-label='{escape(name)}'>{line}</svg>"
        return f"<p>{escape(name)}: {low:,.2f} to {high:,.2f}</p>{picture}"


def write_report(report: WatchReport, folder: Path) -> None:
    """Write both files, each as a whole: a process that is killed leaves the last ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((WATCH_JSON, json.dumps(report.values(), indent=1)), (WATCH_HTML, report.page())):
        write_whole(folder / name, text)
