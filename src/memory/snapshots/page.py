"""An analysis as one HTML file that opens offline.

The pages that `torch.cuda._memory_viz` makes are not used: they fetch their script from the network.
"""

from collections.abc import Iterable, Mapping
from html import escape

from ...utils.html_page import cards, document, image, table
from ..leaks.verdict import TrendClass
from .analysis import COLUMNS, Analysis, correlation_sentence, summary_row, verdict_sentence
from .tables import SiteTable, site_tables

_STYLE = """
.verdict { border-left: 6px solid #98a2b3; background: var(--paper); border-radius: 6px; }
.verdict { padding: 16px 20px; margin: 20px 0; }
.verdict b { display: inline-block; margin-right: 10px; padding: 1px 10px; border-radius: 12px; }
.verdict b { color: #fff; background: #98a2b3; }
.verdict.good { border-color: #2e8b57; } .verdict.good b { background: #2e8b57; }
.verdict.bad { border-color: #c0392b; } .verdict.bad b { background: #c0392b; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 12px; }
.sites td:last-child, .sites th:last-child { text-align: left; }
.sites td { vertical-align: top; }
.sites td:last-child { white-space: normal; width: 55%; }
summary { cursor: pointer; }
pre { margin: 6px 0 2px; font-size: 12px; line-height: 1.45; white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def render(analysis: Analysis, pictures: Mapping[str, bytes], title: str) -> str:
    """Return the page.

    Args:
        analysis: What to show.
        pictures: PNG files by name, as `draw` returns them.
        title: Where the snapshots come from.
    """
    body = [
        f"<h1>CUDA memory snapshots</h1><p class='soft'>{escape(title)}</p>",
        *_head(analysis),
        *_pictures(pictures),
        *(part for sites in site_tables(analysis) for part in _call_sites(sites)),
        *_correlations(analysis),
        "<h2>Every snapshot</h2>",
        table(
            [column.heading for column in COLUMNS],
            (map(escape, summary_row(summary)) for summary in analysis.growth.summaries),
        ),
        "<p class='soft'>Active: in use by a tensor, or pending free. MB = 1,000,000 bytes. "
        "Private pools belong to CUDA graphs and MemPools.</p>",
    ]
    return document(f"Memory snapshots: {title}", body, _STYLE)


def _head(analysis: Analysis) -> Iterable[str]:
    """Yield the verdict and the figures it rests on."""
    growth = analysis.growth
    first, last = growth.summaries[0], growth.summaries[-1]
    tone = {TrendClass.growing: "bad", TrendClass.flat: "good"}.get(growth.verdict, "")
    word, _, rest = verdict_sentence(growth).partition(": ")
    yield f"<div class='verdict {tone}'><b>{escape(word)}</b>{escape(rest)}</div>"
    facts = {
        "per step, active": f"{growth.bytes_per_step / 1e3:,.1f} KB",
        "per step, blocks": f"{growth.blocks_per_step:,.1f}",
        "active, first to last": f"{first.active_bytes / 1e9:.2f} → {last.active_bytes / 1e9:.2f} GB",
        "blocks, first to last": f"{first.active_blocks:,} → {last.active_blocks:,}",
    }
    yield cards(facts)


def _pictures(pictures: Mapping[str, bytes]) -> Iterable[str]:
    """Yield the pictures, two beside each other; that of call-sites has long labels and a row of its own."""
    if not pictures:
        return
    yield "<h2>Over the run</h2><div class='pictures'>"
    for name in sorted(pictures, key=lambda name: name == "call_sites.png"):
        yield image(pictures[name], name, "grid-column: 1 / -1" if name == "call_sites.png" else "")
    yield "</div>"


def _call_sites(sites: SiteTable) -> Iterable[str]:
    """Yield a table of call-sites; each opens to its whole stack."""
    span = f"{sites.span}; a line opens to its stack, innermost first."
    yield f"<h2>{escape(sites.title)}</h2><p class='soft'>{escape(span)}</p>"
    if not sites.rows:
        yield "<p>No call-site.</p>"
        return
    rows = []
    for row, stack in zip(sites.rows, sites.stacks, strict=True):
        *numbers, label = map(escape, row)
        frames = escape("\n".join(stack))
        rows.append([*numbers, f"<details><summary>{label}</summary><pre>{frames}</pre></details>"])
    yield table(sites.headings, rows, "sites")
    if sites.num_left_out:
        yield f"<p class='soft'>and {sites.num_left_out:,} more.</p>"


def _correlations(analysis: Analysis) -> Iterable[str]:
    """Yield how TensorBoard agrees with the snapshots."""
    if analysis.correlations:
        yield "<h2>TensorBoard</h2>"
        yield from (f"<p>{escape(correlation_sentence(each))}</p>" for each in analysis.correlations)
