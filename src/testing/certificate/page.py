"""The certificate as one page that opens offline."""

import html
import io
from pathlib import Path

from matplotlib.figure import Figure

from .certificate import Certificate, Outcome, versions
from .series import Judged

CERTIFICATE_HTML = "certificate.html"
_COLOURS = {Outcome.flat: "#2a7d3f", Outcome.not_flat: "#b3261e", Outcome.undecided: "#6b6b6b"}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
h1 span { padding: .1em .5em; border-radius: .3em; color: #fff; background: VERDICT }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .3em .8em .3em 0;
border-bottom: 1px solid #ddd } td.number { text-align: right; font-variant-numeric: tabular-nums }
pre { background: #f4f4f4; padding: .8em; overflow-x: auto } figure { margin: 1.5em 0 } svg { max-width: 100%;
height: auto }
"""


def save_page(certificate: Certificate, folder: Path) -> None:
    """Write `certificate.html`: no script, no reference to another file or host."""
    (folder / CERTIFICATE_HTML).write_text(page(certificate))


def page(certificate: Certificate) -> str:
    """Return the page."""
    outcome = certificate.outcome
    open_end = f"<p>{html.escape(certificate.sentence())}</p>" if outcome is Outcome.undecided else ""
    rows = "".join(_row(each) for each in certificate.judged)
    plots = "".join(f"<figure>{_plot(each)}</figure>" for each in certificate.judged)
    found = "".join(f"<pre>{html.escape(finding.text())}</pre>" for finding in certificate.findings)
    about = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>"
        for name, text in versions(certificate.device).items()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Memory certificate</title>
<style>{_STYLE.replace("VERDICT", _COLOURS[outcome])}</style></head><body>
<h1>Memory certificate: <span>{outcome.value}</span></h1>
{open_end}
<p>{certificate.steps:,} agent steps, {certificate.updates:,} updates{_fault(certificate)}.
Host memory in use that no component accounts for: {certificate.unaccounted_mb:.1f} MB
(bound {certificate.bound_mb:g} MB). The memory instruments took {certificate.instruments_fraction:.2%} of the
run's time.</p>
{found}
<table><tr><th>resource</th><th>verdict</th><th>at the end</th><th>growth, with its 96.9 % interval</th></tr>
{rows}</table>
{plots}
<h2>How it was made</h2><pre>{html.escape(certificate.command)}</pre><table>{about}</table>
</body></html>
"""


def _fault(certificate: Certificate) -> str:
    return f", with the fault <code>{html.escape(certificate.fault)}</code>" if certificate.fault else ""


def _row(each: Judged) -> str:
    return (
        f"<tr><td>{each.resource.name}</td><td>{each.judgement.verdict.value}</td>"
        f'<td class="number">{each.values[-1]:,.1f} {each.resource.unit}</td>'
        f'<td class="number">{each.growth_text()}</td></tr>'
    )


def _plot(each: Judged) -> str:
    """Return the series as an SVG element, the part that was not judged in grey."""
    figure = Figure(figsize=(9, 2.2), layout="constrained")
    axis = figure.add_subplot()
    axis.plot(each.steps, each.values, color="#1f5fa8", linewidth=1)
    if len(each.steps):
        axis.axvspan(each.steps[0], max(each.steps[0], each.judged_from), color="#eee")
    low, high = each.values.min(), each.values.max()
    margin = max(0.1 * (high - low), each.resource.tolerance / each.resource.scale)
    axis.set_ylim(low - margin, high + margin)
    axis.set_title(f"{each.resource.name}, {each.resource.unit}", fontsize=10, loc="left")
    axis.set_xlabel("agent steps", fontsize=9)
    axis.ticklabel_format(useOffset=False, style="plain")
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()[text.getvalue().index("<svg") :]
