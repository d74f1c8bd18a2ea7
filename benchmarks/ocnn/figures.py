"""The curves of a folder of runs, as PNG."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from benchmarks.ocnn.groups import Group
from benchmarks.ocnn.measuring import ZERO
from benchmarks.shared.figures import blank

# Field of a record, title, axis label, factor to the unit shown, scale of the axis.
_PANELS = (
    ("test_accuracy", "Test accuracy", "correct (%)", 100, "linear"),
    ("train_loss", "Training loss", "cross-entropy φ (nats)", 1, "log"),
    ("sparsity", "Sparsity", f"entries with |w| < {ZERO:.0e} (%)", 100, "linear"),
)
_DISTANCES = (
    ("feasibility", "Distance of X from the constraint", "largest ‖XᵀX − I‖"),
    ("dissolved", "Distance of A(X)", "largest ‖A(X)ᵀA(X) − I‖"),
)
# Ours are solid and rivals dashed; nine colours that are told apart in print and by
# the colour-blind (Okabe and Ito, and two greys).
_OURS = ("algorithm", "ranger", "yogi", "constrain")
_COLOURS = (
    *("#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#E69F00"),
    *("#000000", "#999999", "#8C564B"),
)
_PHONE = 11  # points: a figure is shown at a third of its width


def curves(path: Path, title: str, groups: Sequence[Group]) -> None:
    """Draw accuracy, loss and sparsity, against the epoch and against time."""
    figure = blank(9, 11)
    grid = figure.subplots(3, 2, sharey="row")
    for row, (field, heading, label, factor, scale) in zip(grid, _PANELS, strict=True):
        for axes, over in zip(row, ("epoch", "seconds"), strict=True):
            for place, group in enumerate(groups):
                _draw(axes, group, place, over, field, factor)
            axes.set(title=heading, yscale=scale)
            _dress(axes, over)
        row[0].set_ylabel(label)
        if scale == "linear":
            row[0].set_ylim(*_late(groups, field, factor))
    _finish(figure, title)
    figure.savefig(path, dpi=100)


def feasibility(path: Path, title: str, groups: Sequence[Group]) -> None:
    """Draw the distances of X and of A(X) from the constraint."""
    figure = blank(9, 5)
    row = figure.subplots(1, 2, sharey=True)
    for axes, (field, heading, label) in zip(row, _DISTANCES, strict=True):
        for place, group in enumerate(groups):
            _draw(axes, group, place, "epoch", field, 1)
        axes.set(title=heading, ylabel=label, yscale="log")
        _dress(axes, "epoch")
    _finish(figure, title)
    figure.savefig(path, dpi=100)


def _draw(axes, group, place, over, field, factor):
    """The mean over seeds, and the range."""
    y, x = factor * group.curve(field), group.curve(over).mean(axis=0)
    colour, line = _style(group.name, place)
    axes.plot(x, y.mean(axis=0), line, color=colour, label=group.label, linewidth=1.8)
    if len(y) > 1:
        axes.fill_between(
            x, y.min(axis=0), y.max(axis=0), color=colour, alpha=0.15, lw=0
        )


def _style(name: str, place: int) -> tuple[str, str]:
    line = "-" if name.startswith(_OURS) else "--"
    return _COLOURS[place % len(_COLOURS)], line


def _dress(axes, over):
    axes.set_xlabel("epoch" if over == "epoch" else "seconds of training")
    if over == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)


def _late(groups, field, factor) -> Iterator[float]:
    """The limits of an axis: the first epochs would flatten all that follows."""
    late = np.concatenate(
        [
            factor * g.curve(field)[:, 1 + g.curve(field).shape[1] // 10 :].ravel()
            for g in groups
        ]
    )
    late = late[np.isfinite(late)]
    low, high = (late.min(), late.max()) if late.size else (0.0, 1.0)
    room = 0.05 * (high - low) + 1e-6
    yield max(low - room, 0 if low >= 0 else low - room)
    yield high + room


def _finish(figure, title):
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=_PHONE)
    figure.suptitle(f"{title}\nmean over seeds, and their range")
