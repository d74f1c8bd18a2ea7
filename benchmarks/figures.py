"""The curves of a set of runs, as one PNG."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.training import ZERO, Run

# Field of a record, title, axis label, factor to the unit shown, scale of the axis.
_PANELS = (
    ("test_accuracy", "Test accuracy", "correct (%)", 100, "linear"),
    ("train_loss", "Training loss", "cross-entropy φ (nats)", 1, "log"),
    (
        "sparsity",
        "Sparsity of the kernels",
        f"entries with |w| < {ZERO:.0e} (%)",
        100,
        "linear",
    ),
    ("feasibility", "Distance from the constraint", "largest ‖XᵀX − I‖", 1, "log"),
)
# Told apart without colour as well.
_STYLES = ("-", "--", ":", "-.")


def curves(path: Path, title: str, runs: Mapping[str, Run]) -> None:
    """Draw accuracy, loss, sparsity and feasibility against the epoch."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    # The canvas is named rather than left to pyplot, so that no display is needed.
    canvas = FigureCanvasAgg(figure)
    for axes, (field, heading, label, factor, scale) in zip(
        figure.subplots(2, 2).flat, _PANELS, strict=True
    ):
        for index, (name, run) in enumerate(runs.items()):
            axes.plot(
                [record.epoch for record in run.records],
                [factor * getattr(record, field) for record in run.records],
                label=name,
                linestyle=_STYLES[index % len(_STYLES)],
                linewidth=2,
            )
        axes.set(title=heading, xlabel="epoch", ylabel=label, yscale=scale)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.grid(alpha=0.3)
    # The first epochs climb so far that they would flatten all that follows.
    late = [
        100 * record.test_accuracy
        for run in runs.values()
        for record in run.records[1 + len(run.records) // 10 :]
    ]
    figure.axes[0].set_ylim(min(late) - 1, max(late) + 1)
    figure.axes[0].legend(loc="lower right")
    figure.suptitle(title)
    canvas.print_png(path)
