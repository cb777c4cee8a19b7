"""The pictures are PNG files, and the page needs nothing but itself."""

import base64
import io
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reverie.memory.snapshots import Analysis, Correlation, compare, measure_growth, parse, summarize
from reverie.memory.snapshots.analysis import COLUMNS, TOP_SITES, Comparison, summary_row, top_sites
from reverie.memory.snapshots.correlate import ALLOCATED_TAG
from reverie.memory.snapshots.page import render
from reverie.memory.snapshots.plots import draw
from reverie.memory.snapshots.tables import site_tables

from . import writer

EVIL = "<script>document.title='run'</script>"
EVIL_FRAMES = writer.stack("'\"><img src=x onerror=run>.py:1:$\\frac{</pre>" + EVIL)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(HTMLParser):
    """What a page holds: cells of its tables (`rows`: the last), tags, what could load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.sources: list[str] = []
        self.handlers: list[str] = []
        self.rows: list[list[str]] = []
        self.tables: list[list[list[str]]] = []
        self.is_in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag == "table":
            self.rows = []
            self.tables.append(self.rows)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.is_in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self.is_in_cell = self.is_in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.is_in_cell:
            self.rows[-1][-1] += data


def analysis_of(*snapshots: dict[str, Any]) -> Analysis:
    """All parts of an analysis, at steps 0, 1,000, 2,000 ..."""
    summaries = [summarize(parse(raw, Path("made.pickle")), 1_000 * i) for i, raw in enumerate(snapshots)]
    steps = tuple(summary.step for summary in summaries)
    held = tuple(summary.allocated_bytes / 1e9 for summary in summaries)
    return Analysis(
        measure_growth(summaries),
        (Correlation(ALLOCATED_TAG, steps, steps, held, held, 1.0),),
        Comparison(EVIL, "after", tuple(compare(summaries[0].sites, summaries[-1].sites))),
    )


@pytest.fixture
def analysis() -> Analysis:
    """Three growing snapshots with a call-site that wants to be a script and a formula."""
    snapshots = [writer.incident(step, scale=0.01) for step in (1_000, 2_000, 3_000)]
    snapshots[-1]["segments"].append(writer.segment([writer.block(4_000_000, EVIL_FRAMES)], small=False))
    return analysis_of(*snapshots)


def test_the_pictures_are_png_files_that_show_something(analysis: Analysis) -> None:
    pictures = draw(analysis)
    assert sorted(pictures) == ["blocks.png", "call_sites.png", "pools.png", "tensorboard.png"]
    for name, content in pictures.items():
        with Image.open(io.BytesIO(content)) as picture:
            assert picture.format == "PNG"
            colours = picture.convert("RGB").getcolors(2**24)
            assert colours is not None and len(colours) > 50, name


def test_one_snapshot_and_one_of_nothing_can_be_drawn() -> None:
    for raw in (writer.incident(1_000, scale=0.01), writer.snapshot([])):
        alone = Analysis(analysis_of(raw).growth)
        assert sorted(draw(alone)) == ["blocks.png", "pools.png"]
        text = render(alone, {}, "alone")
        assert "What is held" in text and "Growth by call-site" not in text


def test_drawing_leaves_nothing_in_pyplot(analysis: Analysis) -> None:
    from matplotlib import pyplot

    draw(analysis)
    assert pyplot.get_fignums() == []


def test_the_page_refers_to_nothing_outside_itself(analysis: Analysis) -> None:
    pictures = draw(analysis)
    text = render(analysis, pictures, "title")
    page = Page(text)
    assert len(page.sources) == len(pictures) == 4
    prefix = "data:image/png;base64,"
    assert all(source.startswith(prefix) for source in page.sources)
    assert {base64.b64decode(source.removeprefix(prefix)) for source in page.sources} == set(
        pictures.values()
    )
    assert not re.search(r"https?:|url\(|@import", text)
    assert "default-src 'none'" in text


def test_nothing_out_of_a_file_becomes_markup(analysis: Analysis) -> None:
    text = render(analysis, {}, EVIL)
    page = Page(text)
    assert "script" not in page.tags and page.handlers == [] and page.sources == []
    assert text.count("&lt;script&gt;") >= 4  # title, heading, call-site, comparison
    assert EVIL not in text


def test_the_page_shows_the_rows_of_the_table(analysis: Analysis) -> None:
    head, *rows = Page(render(analysis, {}, "title")).rows
    assert head == [column.heading for column in COLUMNS]
    assert rows == [summary_row(summary) for summary in analysis.growth.summaries]


def test_a_call_site_is_shown_in_the_words_of_the_terminal_and_opens_to_its_stack(analysis: Analysis) -> None:
    growth, comparison, held, _ = Page(render(analysis, {}, "title")).tables
    for page, table in zip((growth, comparison, held), site_tables(analysis), strict=True):
        head, *rows = page
        assert head == list(table.headings)
        shown = zip(table.rows, table.stacks, strict=True)
        assert rows == [[*numbers, label + "\n".join(stack)] for (*numbers, label), stack in shown]
        assert any(EVIL in row[-1] for row in rows)


def test_more_call_sites_than_a_page_shows_are_counted() -> None:
    blocks = [writer.block(512 * i, writer.stack(f"a.py:{i}:f")) for i in range(1, TOP_SITES + 6)]
    text = render(analysis_of(writer.snapshot([]), writer.snapshot([writer.segment(blocks)])), {}, "many")
    assert text.count("<details>") == 3 * TOP_SITES  # growth, comparison, held
    assert text.count("and 5 more.") == 3


def test_of_many_call_sites_those_that_shrank_most_are_shown_too() -> None:
    before = [writer.block(1_048_576, writer.stack("freed.py:1:f"))]
    after = [writer.block(512 * i, writer.stack(f"a.py:{i}:f")) for i in range(1, TOP_SITES + 6)]
    sites = analysis_of(
        *(writer.snapshot([writer.segment(blocks)]) for blocks in (before, after))
    ).growth.sites
    grown = [512 * i for i in range(TOP_SITES + 5, 6, -1)]
    assert [site.bytes_more for site in top_sites(sites)] == [*grown, -1_048_576]


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_real_browser_shows_the_page_and_runs_nothing(analysis: Analysis, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(render(analysis, draw(analysis), EVIL))
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking".split()
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [str(CHROMIUM), *flags, profile, "--dump-dom", file.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    page = Page(dom)
    assert "<title>Memory snapshots: &lt;script&gt;document.title" in dom
    assert page.rows[1:] == [summary_row(summary) for summary in analysis.growth.summaries]
    assert len(page.sources) == 4 and "script" not in page.tags
