"""The tables and the figure of `benchmarks.cost.step`."""

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Marker and line of each curve: told apart without colour as well.
STYLES = {
    "floor": ("", "k:"),
    "ours, guarded step": ("o", "-"),
    "ours, constrain(sgd)": ("s", "-"),
    "ours, Algorithm 1": ("^", "-"),
    "polar, SVD": ("v", "--"),
    "polar, eigh of XᵀX": ("D", "--"),
    "QR": ("x", "--"),
    "Cayley": ("+", "--"),
    "landing": ("*", "-."),
    "POGO": ("P", "-."),
}
PANELS = {
    "n": (-2, "rows n"),
    "p": (-1, "columns p"),
    "batch": (0, "matrices in the stack"),
}


def _row(cells):
    return "| " + " | ".join(cells) + " |"


def _timed(seconds, name):
    if name not in seconds:
        return "—"
    share = seconds[name] / seconds["floor"]
    return f"{1e3 * seconds[name]:.3g} ({share:.2f} ×)"


def _grid(records, names, cell):
    """A row for each name, a column for each shape."""
    shapes = ["×".join(map(str, r["shape"])) for r in records]
    body = [[name, *(cell(r, name) for r in records)] for name in names]
    return [_row(["step", *shapes]), "|---" * (len(shapes) + 1) + "|", *map(_row, body)]


def times(records: list[dict[str, Any]], field: str) -> list[str]:
    """Milliseconds and the ratio to the floor."""
    names = dict.fromkeys(name for r in records for name in r[field])
    return _grid(records, names, lambda r, name: _timed(r[field], name))


def compile_times(records: list[dict[str, Any]]) -> list[str]:
    """Seconds to trace and compile."""
    names = records[0]["compile"]
    return _grid(records, names, lambda r, name: f"{r['compile'][name]:.2f}")


def arrivals(end: dict[str, Any]) -> list[str]:
    """Where each method ended, and what its step costs there."""
    n, p = end["shape"]
    seconds = {
        name: _timed(end[field], name)
        for field in ("seconds", "torch_seconds")
        for name in end[field]
    }
    lines = [
        f"\nAfter {end['steps']} steps on PCA {n}×{p} at learning rate {end['rate']}: "
        "distance from the constraint, relative gap of the nearest point of the "
        "manifold, and the time of the next step.\n",
        _row(["step", "‖XᵀX − I‖", "gap", "ms (× floor)"]),
        "|---|---|---|---|",
    ]
    for name, point in end["points"].items():
        judged = [_size(point[field]) for field in ("feasibility", "gap")]
        lines.append(_row([name, *judged, seconds[name]]))
    return lines


def _size(value):
    return "diverged" if value is None else f"{value:.1e}"


def table(result: dict[str, Any]) -> str:
    """The whole report in Markdown."""
    shown = result["records"]["shapes"]
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    lines = [
        "Median milliseconds of one constrained step, float32, and in brackets the "
        "ratio to the floor: four n×p×p and two p×p×p products of the same framework. "
        f"Device: {result['device']}, {result['cpus']} processors, "
        f"load {result['load']:.1f} before the run; {versions}; up to "
        f"{result['repeats']} turns.\n",
        *times(shown, "seconds"),
    ]
    if shown[0]["torch_seconds"]:
        lines += ["\nThe packages for PyTorch:\n", *times(shown, "torch_seconds")]
    lines += ["\nSeconds to trace and compile:\n", *compile_times(shown)]
    for end in result["ends"]:
        lines += arrivals(end)
    return "\n".join(lines) + "\n"


def figure(path: Path, records: dict[str, list[dict[str, Any]]]) -> None:
    """Draw time against n, p and the size of the stack."""
    drawn = Figure(figsize=(13, 6), layout="constrained")
    # The canvas is named rather than left to pyplot, so that no display is needed.
    canvas = FigureCanvasAgg(drawn)
    panels = drawn.subplots(1, 3)
    for axes, (sweep, (axis, label)) in zip(panels, PANELS.items(), strict=True):
        runs = records[sweep]
        sizes = [r["shape"][axis] for r in runs]
        for name, (marker, line) in STYLES.items():
            taken = [1e3 * r["seconds"][name] for r in runs]
            axes.plot(sizes, taken, line, marker=marker, label=name, markersize=6)
        fixed = list(runs[0]["shape"])
        fixed[axis] = {"n": "n", "p": "p", "batch": "b"}[sweep]
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="time of a step (ms)")
        axes.set_title("×".join(map(str, fixed)) + ", float32")
        axes.set_xticks(sizes, list(map(str, sizes)), minor=False)
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=5)
    canvas.print_png(path)
