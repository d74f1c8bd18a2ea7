"""The tables and the figure of `benchmarks.cost.step`."""

from pathlib import Path
from typing import Any

from benchmarks.shared.figures import blank, in_powers
from benchmarks.shared.methods import METHODS
from benchmarks.shared.results import surroundings
from benchmarks.shared.tables import by, table

# Marker and line of each curve: told apart without colour as well.
STYLES = {
    "floor": ("", "k:"),
    "keep-feasible": ("o", "-"),
    "constrain-sgd": ("s", "-"),
    "algorithm-1": ("^", "-"),
    "r-sgd-polar": ("v", "--"),
    "r-sgd-gram": ("D", "--"),
    "r-sgd-qr": ("x", "--"),
    "cayley": ("+", "--"),
    "landing": ("*", "-."),
    "pogo": ("P", "-."),
}
PANELS = {
    "n": (-2, "rows n"),
    "p": (-1, "columns p"),
    "batch": (0, "matrices in the stack"),
}


def label(name: str) -> str:
    """How a method, the floor or a package is called in tables."""
    return METHODS[name].label if name in METHODS else name


def _timed(seconds, name):
    if name not in seconds:
        return "—"
    return f"{1e3 * seconds[name]:.3g} ({seconds[name] / seconds['floor']:.2f} ×)"


def _grid(records, field, cell):
    """A row for each name, a column for each shape."""
    names = dict.fromkeys(name for r in records for name in r[field])
    rows = [[label(name), *(cell(r[field], name) for r in records)] for name in names]
    return table(["step", *(by(r["shape"]) for r in records)], rows)


def arrivals(end: dict[str, Any]) -> str:
    """Where each method ended, and what its step costs there."""
    seconds = {
        name: _timed(end[field], name)
        for field in ("seconds", "torch_seconds")
        for name in end[field]
    }
    rows = [
        [label(name), _size(point["feasibility"]), _size(point["gap"]), seconds[name]]
        for name, point in end["points"].items()
    ]
    return (
        f"After {end['steps']} steps on PCA {by(end['shape'])} at learning rate "
        f"{end['rate']}: distance from the constraint, relative gap of the nearest "
        "point of the manifold, and the time of the next step.\n\n"
        + table(["step", "‖XᵀX − I‖", "gap", "ms (× floor)"], rows)
    )


def _size(value):
    return "diverged" if value is None else f"{value:.1e}"


RETRACTIONS = ("r-sgd-polar", "r-sgd-gram", "r-sgd-qr", "cayley")


def ratios(shown: list[dict[str, Any]]) -> str:
    """The time of `constrain` over that of its rivals, at each shape."""
    rows = []
    for other in ("landing", "pogo", *RETRACTIONS):
        found = [r["seconds"]["constrain-sgd"] / r["seconds"][other] for r in shown]
        rows.append([label(other), *(f"{ratio:.2f}" for ratio in found)])
    return table(["constrain(sgd) over", *(by(r["shape"]) for r in shown)], rows)


def report(result: dict[str, Any]) -> str:
    """The whole report in Markdown."""
    shown = result["records"]["shapes"]
    parts = [
        "Median milliseconds of one constrained step in a compiled loop, float32, and "
        "in brackets the ratio to the floor: four n×p×p and two p×p×p products of the "
        "same framework. LAPACK has one thread in programs of JAX, which makes nearly "
        f"all methods of a run quicker. Up to {result['repeats']} turns. "
        f"{surroundings(result)}",
        _grid(shown, "seconds", _timed),
    ]
    parts += ["The times in a loop as ratios:", ratios(shown)]
    parts += ["A step called alone from Python:", _grid(shown, "alone", _timed)]
    if shown[0]["torch_seconds"]:
        parts += ["The packages for PyTorch:", _grid(shown, "torch_seconds", _timed)]
    making = _grid(shown, "compile", lambda took, name: f"{took[name]:.2f}")
    parts += ["Seconds to trace and compile:", making]
    return "\n\n".join([*parts, *map(arrivals, result["ends"])])


def figure(path: Path, records: dict[str, list[dict[str, Any]]]) -> None:
    """Draw time against n, p and the size of the stack."""
    drawn = blank(13, 6)
    panels = drawn.subplots(1, 3)
    for axes, (sweep, (axis, title)) in zip(panels, PANELS.items(), strict=True):
        runs = records[sweep]
        sizes = [r["shape"][axis] for r in runs]
        for name, (marker, line) in STYLES.items():
            taken = [1e3 * r["seconds"][name] for r in runs]
            axes.plot(
                sizes, taken, line, marker=marker, label=label(name), markersize=6
            )
        fixed = list(runs[0]["shape"])
        fixed[axis] = {"n": "n", "p": "p", "batch": "b"}[sweep]
        axes.set(xlabel=title, ylabel="time of a step (ms)")
        axes.set_title(f"{by(fixed)}, float32")
        in_powers(axes, sizes)
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=5)
    drawn.savefig(path, dpi=100)
