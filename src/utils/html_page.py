"""Self-contained HTML pages: embedded figures, escaped text, no scripts and no network access."""

import base64
import io
from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING

# Some processes create pages without figures and must not import matplotlib.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLE = """
:root { --ink: #1f2430; --soft: #667085; --line: #e4e7ec; --paper: #fff; --ground: #f5f6f8; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 36px 0 12px; }
p { margin: 0 0 8px; }
.soft { color: var(--soft); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 12px; }
.facts div, img, .scroll { background: var(--paper); border: 1px solid var(--line); border-radius: 6px; }
.facts div { padding: 12px 16px; }
.facts strong { display: block; font-size: 22px; }
img { width: 100%; padding: 8px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-size: 12px; color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
tr:last-child td { border-bottom: 0; }
svg text { fill: var(--ink); }
"""
# This policy prevents the browser from loading external resources.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def document(title: str, body: Iterable[str], style: str = "") -> str:
    """Return a page with an HTML body. `style` adds CSS rules to the common ones."""
    head = [
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>",
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head><body><main>",
    ]
    return "\n".join([*head, *body, "</main></body></html>\n"])


def cards(facts: Mapping[str, str]) -> str:
    """Return a row of cards, each with a value above its name."""
    each = (f"<div><strong>{escape(value)}</strong>{escape(name)}</div>" for name, value in facts.items())
    return f"<div class='facts'>{''.join(each)}</div>"


def image(picture: bytes, name: str) -> str:
    """Return an embedded PNG image with `name` as its alternative text."""
    source = base64.b64encode(picture).decode("ascii")
    return f"<img alt='{escape(name)}' src='data:image/png;base64,{source}'>"


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table. The caller escapes the HTML of `rows`."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"


def tidy(axis: "Axes") -> None:
    """Keep only the left and bottom spines, and draw a faint grid behind the data."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)


def png(figure: "Figure") -> bytes:
    """Return the figure as a PNG file, without pyplot and its global state."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def svg(figure: "Figure", name: str) -> str:
    """Return the figure as embedded SVG in the page's fonts.

    Equal figures produce equal text. Black becomes the page's text color, and the background is transparent.
    """
    from matplotlib import rc_context

    buffer = io.StringIO()
    figure.patch.set_visible(False)
    for axis in figure.axes:
        axis.patch.set_visible(False)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue().replace("#000000", "var(--ink)")
    return text[text.index("<svg") :].replace("<svg ", f"<svg role='img' aria-label='{escape(name)}' ", 1)
