"""HTML pages that open offline: without scripts, and with all text escaped."""

from collections.abc import Iterable, Mapping
from html import escape

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
.facts div, .scroll { background: var(--paper); border: 1px solid var(--line); border-radius: 6px; }
.facts div { padding: 12px 16px; }
.facts strong { display: block; font-size: 22px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-size: 12px; color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
tr:last-child td { border-bottom: 0; }
"""
# The browser may load nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def document(title: str, body: Iterable[str], style: str = "") -> str:
    """Return a page with HTML as its body, and CSS rules beyond those that all pages have."""
    head = [
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>",
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head><body><main>",
    ]
    return "\n".join([*head, *body, "</main></body></html>\n"])


def cards(facts: Mapping[str, str]) -> str:
    """Return a row of values, by name."""
    each = (f"<div><strong>{escape(value)}</strong>{escape(name)}</div>" for name, value in facts.items())
    return f"<div class='facts'>{''.join(each)}</div>"


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; `rows` are HTML, escaped by the caller."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
