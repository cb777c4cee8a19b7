"""Self-contained HTML pages with embedded figures and escaped text, without scripts or network access."""

import base64
import io
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

# Some processes create pages without figures and must not import matplotlib.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLE = Path(__file__).with_suffix(".css")
# This policy prevents the browser from loading external resources.
_POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"


def document(title: str, body: Iterable[str], style: str = "") -> str:
    """Return a page with an HTML body. `style` adds CSS rules to the common ones."""
    head = [
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>",
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{escape(title)}</title><style>\n{_STYLE.read_text('utf-8')}{style}</style></head><body><main>",
    ]
    return "\n".join([*head, *body, "</main></body></html>\n"])


def cards(facts: Mapping[str, str]) -> str:
    """Return a row of cards, each showing a value above its name."""
    each = (f"<div><strong>{escape(value)}</strong>{escape(name)}</div>" for name, value in facts.items())
    return f"<div class='facts'>{''.join(each)}</div>"


def image(picture: bytes, name: str) -> str:
    """Return an embedded PNG image with `name` as its alternative text."""
    source = base64.b64encode(picture).decode("ascii")
    return f"<img alt='{escape(name)}' src='data:image/png;base64,{source}'>"


def video(content: bytes, name: str) -> str:
    """Return an embedded MP4 video that repeats, with `name` as its caption."""
    source = f"data:video/mp4;base64,{base64.b64encode(content).decode('ascii')}"
    return f"<video controls loop src='{source}'></video><figcaption>{escape(name)}</figcaption>"


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table that scrolls sideways if it is too wide. The caller escapes the HTML of `rows`."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
    # With a tab index, the keyboard can scroll it.
    return f"<div class='scroll' tabindex='0'>{whole}</div>"


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

    Equal figures give the same text. Black becomes the page's text color, and the background is transparent.
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
