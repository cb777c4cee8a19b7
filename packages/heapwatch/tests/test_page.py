"""The page of a watch: one chart with axes, a card for each finding, and nothing from outside the file."""

import json
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from heapwatch.watch.page import page
from heapwatch.watch.report import WATCH_HTML, WATCH_JSON

from .watching import python, write

LEAKS = """
    import json, sys, time
    import torch

    class Agent:
        def __init__(self):
            self.net = torch.nn.Linear(64, 64)
            self.optimizer = torch.optim.SGD(self.net.parameters(), 0.01)
            self.diary = []

        def learn(self):
            loss = self.net(torch.randn(64, 64)).square().mean()
            loss.backward(retain_graph=True)
            self.optimizer.step()
            # The text "<b>" & this line are near the leak.
            self.diary.append(loss)

    agent = Agent()
    agent.learn()
    while json.load(open("report/watch.json"))["verdict"] != "leak":
        agent.learn()
        time.sleep(0.002)
"""
COMMAND = ("-m", "heapwatch", "--report", "report", "--share", "0.5", "--seconds", "0.002")


def parsed(text: str) -> ElementTree.Element:
    """Parse a page as XML, after its void elements are closed."""
    body = re.sub(r"<(meta [^>]*)>", r"<\1/>", text.partition("<!doctype html>")[2])
    return ElementTree.fromstring(re.sub(r"<!--.*?-->", "", body))


def axes(svg: ElementTree.Element) -> tuple[list[tuple[float, float]], list[tuple[float, float]], set[str]]:
    """Return (position, number) of the ticks of x and y, and the other texts."""
    texts = [(each.text or "", each.attrib) for each in svg.iter("text")]
    numbers = [
        (float(text.replace(",", "")), each) for text, each in texts if re.fullmatch(r"-?[\d,.]+", text)
    ]
    xs = [(float(each["x"]), number) for number, each in numbers if each["text-anchor"] == "middle"]
    ys = [(float(each["y"]), number) for number, each in numbers if each["text-anchor"] == "end"]
    return xs, ys, {text for text, _ in texts if re.search("[A-Za-z]", text)}


def require_axes(svg: ElementTree.Element, time_unit: str) -> None:
    """Check that ticks are evenly spaced and labeled, and that all lines lie between them."""
    xs, ys, labels = axes(svg)
    assert labels == {f"time ({time_unit})", "MB"}
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    for ticks, size in ((xs, width), (ys, height)):
        assert 3 <= len(ticks) <= 9
        scale = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(ticks)]
        assert scale == pytest.approx([scale[0]] * len(scale), rel=0.02) and scale[0] != 0
        assert all(0 <= place <= size for place, _ in ticks)
    lines = list(svg.iter("polyline"))
    assert lines
    for line in lines:
        for x, y in (map(float, point.split(",")) for point in line.attrib["points"].split()):
            assert xs[0][0] - 1 <= x <= xs[-1][0] + 1
            # The number of a tick is five units below its grid line.
            assert ys[-1][0] - 6 <= y <= ys[0][0]


def require_offline(text: str) -> None:
    """Check that a page loads nothing and runs nothing."""
    assert "default-src 'none'" in text
    assert not re.search(
        r"https?:|//\w|url\(|@import|\bsrc=|\bhref=|<script|<link|<iframe|<img|\son\w+=", text
    )


def test_the_page_of_a_leak_has_a_chart_and_a_card_with_path_code_and_fix(tmp_path: Path) -> None:
    write(tmp_path, LEAKS)
    os.environ["API_TOKEN"] = "hunter-of-secrets"
    try:
        seen = python(tmp_path, *COMMAND, "train.py", "--name", "<script>x</script>")
    finally:
        del os.environ["API_TOKEN"]
    assert seen.returncode == 0, seen.stderr
    files = [(tmp_path / "report" / name).read_text() for name in (WATCH_HTML, WATCH_JSON)]
    assert not any("hunter-of-secrets" in text or "API_TOKEN" in text for text in files)
    report = json.loads(files[1])
    assert report["version"] == 1 and report["command"] == "train.py --name '<script>x</script>'"
    require_offline(files[0])
    root = parsed(files[0])
    assert root.findtext(".//h1") == "Memory leaks in Agent.diary."
    assert root.findtext(".//code") == report["command"]
    assert f"Started {report['started']}. {report['samples']} samples in " in files[0]
    [svg] = root.iter("svg")
    # A busy machine may need minutes.
    last = report["series"][-1]["seconds"]
    require_axes(svg, "s" if last < 180 else "min" if last < 7200 else "h")
    # The holder was measured at the suspicion and at the finding.
    assert len(list(svg.iter("polyline"))) == 2 and len(list(svg.iter("circle"))) >= 2
    [legend] = root.iter("figcaption")
    assert re.search(r"Agent\.diary \([\d.]+ to [\d.]+ MB\)", "".join(legend.itertext()))
    [card] = (each for each in root.iter("section") if each.attrib["class"] == "card leak")
    text = "".join(card.itertext())
    assert "Leak of host memory in use" in text and "keeps every autograd graph alive" in text
    assert "Fix: Store loss.item() or loss.detach()." in text
    assert "Path: module __main__.agent.diary" in text
    [code] = card.iter("pre")
    lines = (code.text or "").split("\n")
    assert [line.split()[:2] for line in lines if line.startswith(">")] == [[">", "16"]]
    assert lines[1].endswith('# The text "<b>" & this line are near the leak.') and len(lines) >= 4


def values(**changes: Any) -> dict[str, Any]:
    """Return the values of a run on a GPU, with names that look like markup."""
    rows = [
        {
            "step": 10 * i,
            "seconds": 240.0 * i,
            "debug/cpu/in_use_mb": 900.0 + 0.01 * i,
            "debug/gpu/alloc_mb": 20_000.0 + 30 * i,
            "memory/cpu/<replay>": 3.0,
        }
        for i in range(60)
    ]
    message = {"text": "<b>Engine</b> grows", "fix": "", "owner": "e", "path": "a['<i>']", "code": "> 1  a<b"}
    finding = {
        "step": 300,
        "seconds": 7200.0,
        "verdict": "growing",
        "resource": "GPU memory in use",
        "messages": [message],
        "sources": ["</details>"],
        "growth": "+3 MB per 1,000 steps",
        "ended": None,
    }
    leak = finding | {"step": 400, "verdict": "leak"}
    return {
        "command": "train.py",
        "started": "2026-11-28 02:41:04 UTC",
        "verdict": "leak",
        "findings": [finding, leak],
        "newest_allocations": [],
        "counters": {"open files": {"verdict": "flat", "samples": 96}},
        "series": rows,
        "holders": {"cuda": {"<u>cache</u>": [[100, 5e6], [400, 900e6]]}},
    } | changes


def test_a_gpu_has_its_own_chart_and_a_leak_replaces_earlier_growth() -> None:
    text = page(values(), "Memory leaks in e.", "60 samples.", ["allocated at <x>"])
    require_offline(text)
    root = parsed(text)
    assert [each.findtext("h2") for each in root.iter("figure")] == ["Host memory", "GPU memory"]
    host, gpu = root.iter("svg")
    for svg in (host, gpu):
        require_axes(svg, "h")
    labels = ["".join(each.itertext()) for each in root.iter("figcaption")]
    assert (
        "memory in use above 900.0 MB (0.0 to 0.6 MB)" in labels[0]
        and "<replay> (3.0 to 3.0 MB)" in labels[0]
    )
    assert "<u>cache</u> (5.0 to 900.0 MB)" in labels[1]
    # The scale of flat memory is not stretched.
    assert axes(host)[1][-1][1] - axes(host)[1][0][1] >= 5
    [card] = root.iter("section")
    assert card.attrib["class"] == "card leak" and "<b>Engine</b> grows" in "".join(card.itertext())
    assert "allocated at <x>" in "".join(root.itertext())


def test_a_program_without_samples_has_a_page_without_a_chart() -> None:
    root = parsed(page(values(series=[], findings=[], verdict="undecided"), "Not enough.", "0 samples.", []))
    assert not [*root.iter("svg")] and not [*root.iter("section")]
