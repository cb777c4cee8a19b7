"""The site that `make docs` builds, as Chromium shows it."""

import asyncio
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from .chromium import DESKTOP, NEED_CHROMIUM, PHONE, Browser, browser

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[1]
OWNERS = {"train_ratio": "training", "newest_share": "buffer"}
SEARCHED = ("training.train_ratio", "train_ratio", "newest_share", "buffer.newest_share", "env.image_size")
CUT_OFF = """[...document.querySelectorAll("pre > code")].filter(each => {
    const [outer, inner] = [each.getBoundingClientRect(), each];
    return inner.scrollWidth > inner.clientWidth + 1 || outer.right > innerWidth || outer.left < 0;
}).map(each => each.textContent.slice(0, 80))"""
RESULT = ".md-search-result__item a[href*='#']"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, strictly."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/someone/reverie.git", "https://github.com/someone/reverie"),
        ("https://x-access-token:secret@github.com/someone/reverie", "https://github.com/someone/reverie"),
        (
            "https://git.example.org:8443/group/part/reverie/",
            "https://git.example.org:8443/group/part/reverie",
        ),
        ("git@github.com:someone/reverie.git\n", "https://github.com/someone/reverie"),
        ("ssh://git@git.example.org:22/someone/reverie.git", "https://git.example.org/someone/reverie"),
        ("/srv/reverie", ""),
        ("", ""),
    ],
)
def test_the_repository_link_leads_to_where_the_clone_came_from(remote: str, address: str) -> None:
    hook = runpy.run_path(str(ROOT / "docs" / "hooks" / "site.py"), run_name="site")
    assert hook["repository_address"](remote) == address


def test_no_page_loads_anything_from_another_server(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert 'src="http' not in text and 'rel="stylesheet" href="http' not in text, page


def test_each_notebook_is_a_page_with_its_outputs(site: Path) -> None:
    for notebook in (ROOT / "examples" / "notebooks").glob("*.ipynb"):
        page = (site / "notebooks" / f"{notebook.stem}.html").read_text()
        cells = json.loads(notebook.read_text())["cells"]
        pictures = sum("image/png" in str(output) for cell in cells for output in cell.get("outputs", ()))
        assert page.count("Output of the cell above") == pictures
        streams = [[output.get("name") for output in cell.get("outputs", ())] for cell in cells]
        assert page.count("output highlight") == sum(len({*names} - {None}) for names in streams) > 0


@NEED_CHROMIUM
def test_no_code_line_is_cut_off_and_no_page_scrolls_sideways(site: Path, tmp_path: Path) -> None:
    async def check(tab: Browser, size: tuple[int, int]) -> None:
        for page in sorted(site.rglob("*.html")):
            await tab.open(page.as_uri(), *size, is_phone=size == PHONE)
            assert await tab.value(CUT_OFF) == [], (page, size)
            assert await tab.value("document.documentElement.scrollWidth") <= size[0], (page, size)

    async def run() -> None:
        async with browser(tmp_path / "profile") as tab:
            for size in (DESKTOP, PHONE):
                await check(tab, size)

    asyncio.run(run())


@NEED_CHROMIUM
def test_the_search_returns_the_entry_of_a_setting_first(site: Path, tmp_path: Path) -> None:
    async def run() -> None:
        async with browser(tmp_path / "profile") as tab:
            await tab.open((site / "index.html").as_uri(), *DESKTOP)
            await tab.value("document.querySelector('label[for=__search]').click()")
            for words in SEARCHED:
                entry = words if "." in words else f"{OWNERS[words]}.{words}"
                await tab.value(
                    f"field = document.querySelector('.md-search__input'); field.value = {words!r}"
                )
                # Typed again until the script of the page listens.
                typed = "field.dispatchEvent(new Event('keyup', {bubbles: true}))"
                await tab.wait_until(f"{typed} && document.querySelector({RESULT!r})?.hash === '#{entry}'")

    asyncio.run(run())
