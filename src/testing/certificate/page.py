"""Write the certificate as one page that opens offline."""

from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from ...utils.figures import png
from ...utils.html_page import cards, document, image, table
from .certificate import Certificate, Outcome, versions
from .series import Judged

CERTIFICATE_HTML = "certificate.html"
_COLOURS = {Outcome.flat: "#2a7d3f", Outcome.not_flat: "#b3261e", Outcome.undecided: "#6b6b6b"}
_STYLE = """
h1 span { padding: .1em .5em; border-radius: .3em; color: #fff; background: COLOUR }
pre { background: #fff; padding: .8em; overflow-x: auto }
"""


def save_page(certificate: Certificate, folder: Path) -> None:
    """Write `certificate.html`: no script, no reference to another file or host."""
    (folder / CERTIFICATE_HTML).write_text(page(certificate))


def page(certificate: Certificate) -> str:
    """Return the page."""
    outcome = certificate.outcome
    facts = {
        "agent steps": f"{certificate.steps:,}",
        "updates": f"{certificate.updates:,}",
        "fault": certificate.fault or "none",
        f"MB not accounted for (bound {certificate.bound_mb:g})": f"{certificate.unaccounted_mb:.1f}",
        "of the time for the instruments": f"{certificate.instruments_fraction:.2%}",
    }
    rows = [
        [each.resource.name, each.judgement.verdict.value, _last(each), each.growth_text()]
        for each in certificate.judged
    ]
    about = versions(certificate.device).items()
    body = [
        f"<h1>Memory certificate: <span>{outcome.value}</span></h1>",
        f"<p>{escape(certificate.sentence())}</p>" if outcome is Outcome.undecided else "",
        cards(facts),
        *(f"<pre>{escape(finding.text())}</pre>" for finding in certificate.findings),
        table(["resource", "verdict", "at the end", "growth, with its 96.9 % interval"], rows),
        *(image(_plot(each), each.resource.name) for each in certificate.judged),
        f"<h2>How it was made</h2><pre>{escape(certificate.command)}</pre>",
        table(["part", "version"], [[escape(name), escape(text)] for name, text in about]),
    ]
    return document("Memory certificate", body, _STYLE.replace("COLOUR", _COLOURS[outcome]))


def _last(each: Judged) -> str:
    return f"{each.values[-1]:,.1f} {each.resource.unit}"


def _plot(each: Judged) -> bytes:
    """Return the series as a picture, the part that was not judged in grey."""
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
    return png(figure)
