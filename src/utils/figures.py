"""What figures have in common; they are made without pyplot, so nothing global is set and nothing stays."""

import io

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter


def tidy(axis: Axes) -> None:
    """Leave two spines and a faint grid behind what is drawn."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)


def with_commas() -> FuncFormatter:
    """Return what writes whole numbers with commas along an axis."""
    return FuncFormatter(lambda value, _: f"{value:,.0f}")


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG file."""
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()
