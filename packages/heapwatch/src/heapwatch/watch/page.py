"""The page of a watch: a chart of memory over time for each device, and a card for each finding."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

_PAGE = Template(Path(__file__).with_name("page.html").read_text())
# The memory in use by device, and the heading of its chart.
_CHARTS = (("cpu", "debug/cpu/in_use_mb", "Host memory"), ("cuda", "debug/gpu/alloc_mb", "GPU memory"))
_MOST_HOLDERS = 4
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 600, 320, 66, 16, 34, 48
# Smaller changes look flat.
_LEAST_MB = 5.0
_MOST_TICKS = 6
# The least seconds for which a unit is used, its seconds, and its name.
_UNITS = ((7200.0, 3600.0, "h"), (180.0, 60.0, "min"), (0.0, 1.0, "s"))
_ROW = "<tr><td>{}</td><td>{verdict}</td><td>{samples}</td></tr>"
_PARTS = {"text": "<p>{}</p>", "fix": "<p><b>Fix:</b> {}</p>", "path": "<p>Path: <code>{}</code></p>"}


def page(values: Mapping[str, Any], verdict: str, summary: str, notes: Sequence[str]) -> str:
    """Return an offline HTML page, without scripts and with all text of the program escaped.

    Args:
        values: Values of `watch.json`.
        verdict: One sentence about the whole program.
        summary: Number of samples, duration and cost.
        notes: Lines below the findings.
    """
    cards: dict[str, str] = {}
    # The verdict's finding comes first. The newest finding replaces earlier ones about the same resource.
    for each in sorted(reversed(values["findings"]), key=lambda each: each["verdict"] != values["verdict"]):
        cards.setdefault(each["resource"], _card(each))
    return _PAGE.substitute(
        command=escape(values["command"]),
        verdict=escape(verdict),
        summary=escape(f"Started {values['started']}. {summary}"),
        charts="".join(_chart(values, *each) for each in _CHARTS),
        cards="".join(cards.values()),
        notes="".join(f"<p>{escape(note)}</p>" for note in notes),
        counters="".join(_ROW.format(escape(name), **test) for name, test in values["counters"].items()),
    )


def _card(finding: Mapping[str, Any]) -> str:
    """Return the card of a finding: each cause with its fix, path and code."""
    remark = " (not yet a leak: it may end)" if finding["verdict"] == "growing" else ""
    ended = finding["ended"]
    end = "" if ended is None else f" It has ended by step {ended:,}."
    head = f"{finding['verdict'].capitalize()} of {finding['resource']}{remark}"
    since = f"Found at step {finding['step']:,}, after {finding['seconds']:,.0f} s. {finding['growth']}{end}"
    parts = [f"<h2>{escape(head)}</h2><p class='faint'>{escape(since)}</p>"]
    for cause in finding["messages"] or [{"text": line} for line in finding["sources"]]:
        shown = (_PARTS | {"code": "<pre>{}</pre>"}).items()
        parts += [form.format(escape(cause[key])) for key, form in shown if cause.get(key)]
    lines = "".join(f"<p><code>{escape(line)}</code></p>" for line in finding["sources"])
    parts.append(f"<details><summary>Holders by path</summary>{lines}</details>")
    kind = "leak" if finding["verdict"] == "leak" and ended is None else "other"
    return f"<section class='card {kind}'>{''.join(parts)}</section>"


def _chart(values: Mapping[str, Any], device: str, tag: str, heading: str) -> str:
    """Return the memory of a device over time as SVG with a legend, or "" if the device is not used.

    The memory in use counts from its first sample, so that it has the same scale as its holders.
    """
    rows = [row for row in values["series"] if row.get(tag)]
    if not rows:
        return ""
    first, prefix = rows[0][tag], f"memory/{device}/"
    steps, seconds = zip(*((row["step"], row["seconds"]) for row in rows), strict=True)
    holders = {
        key.removeprefix(prefix): [(row["seconds"], row[key]) for row in rows if key in row]
        for key in {key for row in rows for key in row if key.startswith(prefix)}
    }
    for name, points in values["holders"].get(device, {}).items():
        holders[name] = [(float(np.interp(step, steps, seconds)), size / 1e6) for step, size in points]
    largest = sorted(holders.items(), key=lambda line: -line[1][-1][1])[:_MOST_HOLDERS]
    in_use = [(row["seconds"], row[tag] - first) for row in rows]
    lines = [(f"memory in use above {first:,.1f} MB", in_use), *largest]
    _, second, unit = next(each for each in _UNITS if seconds[-1] >= each[0])
    sizes = [size for _, points in lines for _, size in points]
    xs = _ticks(seconds[0] / second, max(seconds[-1], seconds[0] + 1.0) / second)
    ys = _ticks(min(sizes), max(max(sizes), min(sizes) + _LEAST_MB))

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (x - xs[0]) / (xs[-1] - xs[0]), (y - ys[0]) / (ys[-1] - ys[0])
        right, low = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        return round(_LEFT + across * (right - _LEFT), 1), round(low - up * (low - _TOP), 1)

    (left, low), (right, _), keys = place(xs[0], ys[0]), place(xs[-1], ys[0]), ""
    drawn = [_text(place(x, ys[0])[0], low + 20, f"{x:,g}") for x in xs]
    drawn += [_text(left - 6, place(xs[0], y)[1] + 5, f"{y:,g}", "end") for y in ys]
    drawn += [f"<path class='grid' d='M{left} {place(xs[0], y)[1]}H{right}'/>" for y in ys]
    drawn += [_text(_WIDTH / 2, _HEIGHT - 4, f"time ({unit})"), _text(_LEFT, 18, "MB")]
    for number, (name, points) in enumerate(lines):
        colour, at = f"var(--{number})", [place(time / second, size) for time, size in points]
        path = " ".join(f"{x},{y}" for x, y in at)
        drawn.append(f"<polyline points='{path}' style='stroke: {colour}'/>")
        # A holder is measured rarely, so each measurement is visible.
        drawn += [f"<circle cx='{x}' cy='{y}' r='3.5' style='fill: {colour}'/>" for x, y in at if number]
        label = escape(f"{name} ({points[0][1]:,.1f} to {points[-1][1]:,.1f} MB)")
        keys += f"<span class='key'><b style='color: {colour}'>━</b> {label}</span>"
    svg = f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{heading}'>{''.join(drawn)}</svg>"
    return f"<figure><h2>{heading}</h2>{svg}<figcaption>{keys}</figcaption></figure>"


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f"<text x='{x}' y='{y}' text-anchor='{anchor}'>{text}</text>"


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers at equal distances that enclose an interval.

    >>> _ticks(0.0, 47.0), _ticks(-0.3, 4.7)
    ([0.0, 10.0, 20.0, 30.0, 40.0, 50.0], [-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    """
    least = (high - low) / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    size = next(power * each for each in (1, 2, 5, 10) if power * each >= least)
    return [round(size * i, 9) for i in range(math.floor(low / size), math.ceil(high / size) + 1)]
