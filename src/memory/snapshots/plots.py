"""Pictures of an analysis, as PNG files in memory.

Figures are made without pyplot, so nothing global is set and nothing stays. Texts out of a snapshot are drawn
as ASCII and never as formulas: a file must not choose what matplotlib parses.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...utils.figures import png, tidy, with_commas
from .analysis import Analysis
from .correlate import Correlation
from .growth import Growth
from .sites import site_label

_GB, _MB = 1e9, 1e6
_BLUE, _ORANGE, _RED, _GREY = "#2f6db3", "#e08a1e", "#c0392b", "#8a8f98"
_SITES = 8
_LABEL_LETTERS = 72


def draw(analysis: Analysis) -> dict[str, bytes]:
    """Return the pictures by file name: pools, blocks, call-sites if any changed, TensorBoard if it was read.

    Cost: 0.2 s each.
    """
    growth = analysis.growth
    pictures = {"pools.png": _draw_pools(growth), "blocks.png": _draw_blocks(growth)}
    if growth.sites:
        pictures["call_sites.png"] = _draw_sites(growth)
    if analysis.correlations:
        pictures["tensorboard.png"] = _draw_correlations(analysis.correlations)
    return pictures


def _draw_pools(growth: Growth) -> bytes:
    """Stack the two pools' active bytes under the line of what is reserved."""
    figure, axis = _figure("Memory by pool", "GB")
    steps = [summary.step for summary in growth.summaries]
    large = [summary.large_active_bytes / _GB for summary in growth.summaries]
    active = [summary.active_bytes / _GB for summary in growth.summaries]
    axis.fill_between(steps, 0, large, color=_ORANGE, alpha=0.8, linewidth=0, label="large pool, active")
    axis.fill_between(steps, large, active, color=_BLUE, alpha=0.8, linewidth=0, label="small pool, active")
    reserved = [summary.reserved_bytes / _GB for summary in growth.summaries]
    axis.plot(steps, reserved, color=_GREY, linestyle="--", marker=_marker(steps), label="reserved")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, loc="upper left")
    return png(figure)


def _draw_blocks(growth: Growth) -> bytes:
    """Plot the number of active blocks."""
    figure, axis = _figure("Active blocks", "blocks")
    steps = [summary.step for summary in growth.summaries]
    blocks = [summary.active_blocks for summary in growth.summaries]
    axis.plot(steps, blocks, color=_BLUE, marker=_marker(steps))
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(with_commas())
    return png(figure)


def _draw_sites(growth: Growth) -> bytes:
    """Draw a bar for each of the call-sites whose bytes changed most."""
    sites = sorted(growth.sites, key=lambda site: abs(site.bytes_more), reverse=True)[:_SITES]
    figure = Figure(figsize=(11, 1.2 + 0.42 * len(sites)), dpi=110, layout="constrained")
    axis = figure.add_subplot()
    places = range(len(sites))
    more = [site.bytes_more / _MB for site in sites]
    axis.barh(places, more, color=[_RED if value > 0 else _BLUE for value in more], height=0.6)
    axis.set_yticks(places, [_ascii(site_label(site.stack)) for site in sites], parse_math=False)
    axis.invert_yaxis()
    axis.set_xlabel(
        f"MB more at step {growth.summaries[-1].step:,} than at step {growth.summaries[0].step:,}"
    )
    axis.set_title("Growth by call-site", loc="left", fontweight="bold")
    axis.xaxis.set_major_formatter(with_commas())
    tidy(axis)
    return png(figure)


def _draw_correlations(correlations: Sequence[Correlation]) -> bytes:
    """Plot what the run logged over what the snapshots hold."""
    figure, axis = _figure("Snapshots and TensorBoard", "GB")
    for correlation, colour in zip(correlations, (_BLUE, _GREY), strict=False):
        name = correlation.tag.rpartition("/")[2]
        axis.plot(correlation.steps, correlation.snapshot_gb, color=colour, label=f"{name}, snapshots")
        axis.plot(
            correlation.logged_steps,
            correlation.logged_gb,
            color=_ORANGE,
            linestyle="none",
            marker="x",
            label=f"{name}, logged",
        )
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, loc="upper left")
    return png(figure)


def _figure(title: str, unit: str) -> tuple[Figure, Axes]:
    """Return a figure over agent steps."""
    figure = Figure(figsize=(6.4, 3.6), dpi=110, layout="constrained")
    axis = figure.add_subplot()
    axis.set_title(title, loc="left", fontweight="bold")
    axis.set_xlabel("agent steps")
    axis.set_ylabel(unit)
    axis.xaxis.set_major_formatter(with_commas())
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    tidy(axis)
    return figure, axis


def _marker(steps: Sequence[int]) -> str:
    """Return a dot for each snapshot where they are few: a line of one point would not show."""
    return "o" if len(steps) < 10 else ""


def _ascii(text: str) -> str:
    """Return a text that every font has, cut to the width of a label."""
    plain = text.encode("ascii", "replace").decode("ascii")
    return plain if len(plain) <= _LABEL_LETTERS else plain[: _LABEL_LETTERS - 3] + "..."
