"""An analysis as one HTML file that opens offline: pictures inside, no script, nothing from outside.

Every text goes through `html.escape`, and a content policy lets the browser load nothing. The pages that
`torch.cuda._memory_viz` makes are not used: they fetch their script from the network.
"""

import base64
from collections.abc import Iterable, Mapping
from html import escape

from ..verdict import Verdict
from .analysis import COLUMNS, Analysis, correlation_sentence, summary_row, verdict_sentence
from .tables import SiteTable, site_tables

_STYLE = """
:root { --ink: #1f2430; --soft: #667085; --line: #e4e7ec; --paper: #fff; --ground: #f5f6f8; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 36px 0 12px; }
p { margin: 0 0 8px; }
.soft { color: var(--soft); }
.verdict { border-left: 6px solid #98a2b3; background: var(--paper); border-radius: 6px; }
.verdict { padding: 16px 20px; margin: 20px 0; }
.verdict b { display: inline-block; margin-right: 10px; padding: 1px 10px; border-radius: 12px; }
.verdict b { color: #fff; background: #98a2b3; }
.verdict.good { border-color: #2e8b57; } .verdict.good b { background: #2e8b57; }
.verdict.bad { border-color: #c0392b; } .verdict.bad b { background: #c0392b; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 12px; }
.facts div, img, .scroll { background: var(--paper); border: 1px solid var(--line); border-radius: 6px; }
.facts div { padding: 12px 16px; }
.facts strong { display: block; font-size: 22px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 12px; }
img { width: 100%; padding: 8px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-size: 12px; color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
tr:last-child td { border-bottom: 0; }
.sites td:last-child, .sites th:last-child { text-align: left; }
.sites td { vertical-align: top; }
.sites td:last-child { white-space: normal; width: 55%; }
summary { cursor: pointer; }
pre { margin: 6px 0 2px; font-size: 12px; line-height: 1.45; white-space: pre-wrap; overflow-wrap: anywhere; }
"""

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def render(analysis: Analysis, pictures: Mapping[str, bytes], title: str) -> str:
    """Return the page.

    Args:
        analysis: What to show.
        pictures: PNG files by name, as `draw` returns them.
        title: Where the snapshots come from.
    """
    parts = [
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>",
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Memory snapshots: {escape(title)}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>CUDA memory snapshots</h1><p class='soft'>{escape(title)}</p>",
        *_head(analysis),
        *_pictures(pictures),
        *(part for table in site_tables(analysis) for part in _call_sites(table)),
        *_correlations(analysis),
        "<h2>Every snapshot</h2>",
        _table(
            [column.heading for column in COLUMNS],
            (map(escape, summary_row(summary)) for summary in analysis.growth.summaries),
        ),
        "<p class='soft'>Active: in use by a tensor, or pending free. MB = 1,000,000 bytes. "
        "Private pools belong to CUDA graphs and MemPools.</p></main></body></html>\n",
    ]
    return "\n".join(parts)


def _head(analysis: Analysis) -> Iterable[str]:
    """Yield the verdict and the figures it rests on."""
    growth = analysis.growth
    first, last = growth.summaries[0], growth.summaries[-1]
    tone = {Verdict.leak: "bad", Verdict.flat: "good"}.get(growth.verdict, "")
    word, _, rest = verdict_sentence(growth).partition(": ")
    yield f"<div class='verdict {tone}'><b>{escape(word)}</b>{escape(rest)}</div>"
    facts = {
        "per step, active": f"{growth.bytes_per_step / 1e3:,.1f} KB",
        "per step, blocks": f"{growth.blocks_per_step:,.1f}",
        "active, first to last": f"{first.active_bytes / 1e9:.2f} → {last.active_bytes / 1e9:.2f} GB",
        "blocks, first to last": f"{first.active_blocks:,} → {last.active_blocks:,}",
    }
    cards = (f"<div><strong>{escape(value)}</strong>{escape(name)}</div>" for name, value in facts.items())
    yield f"<div class='facts'>{''.join(cards)}</div>"


def _pictures(pictures: Mapping[str, bytes]) -> Iterable[str]:
    """Yield the pictures, two beside each other; that of call-sites has long labels and a row of its own."""
    if not pictures:
        return
    yield "<h2>Over the run</h2><div class='pictures'>"
    for name in sorted(pictures, key=lambda name: name == "call_sites.png"):
        source = base64.b64encode(pictures[name]).decode("ascii")
        wide = " style='grid-column: 1 / -1'" if name == "call_sites.png" else ""
        yield f"<img alt='{escape(name)}'{wide} src='data:image/png;base64,{source}'>"
    yield "</div>"


def _call_sites(table: SiteTable) -> Iterable[str]:
    """Yield a table of call-sites; each opens to its whole stack."""
    span = f"{table.span}; a line opens to its stack, innermost first."
    yield f"<h2>{escape(table.title)}</h2><p class='soft'>{escape(span)}</p>"
    if not table.rows:
        yield "<p>No call-site.</p>"
        return
    rows = []
    for row, stack in zip(table.rows, table.stacks, strict=True):
        *numbers, label = map(escape, row)
        frames = escape("\n".join(stack))
        rows.append([*numbers, f"<details><summary>{label}</summary><pre>{frames}</pre></details>"])
    yield _table(table.headings, rows, "sites")
    if table.num_left_out:
        yield f"<p class='soft'>and {table.num_left_out:,} more.</p>"


def _correlations(analysis: Analysis) -> Iterable[str]:
    """Yield how TensorBoard agrees with the snapshots."""
    if analysis.correlations:
        yield "<h2>TensorBoard</h2>"
        yield from (f"<p>{escape(correlation_sentence(each))}</p>" for each in analysis.correlations)


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]], kind: str = "") -> str:
    """Return a table; `rows` are HTML, escaped by the caller."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f"<div class='scroll'><table class='{kind}'><thead><tr>{head}</tr></thead>"
        f"<tbody>\n{body}\n</tbody></table></div>"
    )
