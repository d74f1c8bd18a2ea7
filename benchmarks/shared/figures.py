"""What the figures share."""

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def blank(width: float, height: float) -> Figure:
    """An empty figure.

    Its canvas is named rather than left to pyplot, so that no display is needed.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def in_powers(axes, sizes: list[int]) -> None:
    """Logarithmic axes, with the sizes that were measured as ticks."""
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(sizes, list(map(str, sizes)), minor=False)
    axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
