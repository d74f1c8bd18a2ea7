"""The tables and the figure of `benchmarks.scaling.growth`."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# What is drawn, with its unit; and marker and line of each method, told apart without
# colour as well.
FIELDS = {
    "seconds": (1e3, "time of a step (ms)"),
    "temporary": (1e-6, "temporary memory (MB)"),
    "trace": (1.0, "to trace (s)"),
    "compile": (1.0, "to compile (s)"),
}
STYLES = {"keep_feasible": "o-", "constrain(sgd)": "s--"}
LABELS = {
    "n": "rows n of n×{p}",
    "p": "columns p of {n}×p",
    "batch": "matrices of {n}×{p} in one leaf",
    "equal leaves": "leaves of {n}×{p}",
    "large leaves": "leaves of {n}×{p}",
    "distinct leaves": "leaves of different shapes",
}
# Products of n×p×p and of p×p×p in a step on one device, once the point is known.
PRODUCTS = {"keep_feasible": (4, 1), "constrain(sgd)": (6, 1)}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the least-squares line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def _row(*cells):
    return "| " + " | ".join(cells) + " |"


def _label(name, records):
    *_, n, p = records[0]["shape"]
    return LABELS[name].format(n=n, p=p)


def _columns(records, method, field):
    mine = [r for r in records if r["method"] == method]
    return [r["size"] for r in mine], [r[field] for r in mine]


def _measured(records) -> Iterator[str]:
    yield _row("size", "method", "ms", "temporary MB", "trace, s", "compile, s")
    yield "|---" * 6 + "|"
    for r in records:
        cells = [f"{unit * r[field]:.3g}" for field, (unit, _) in FIELDS.items()]
        yield _row(str(r["size"]), r["method"], *cells)


def _exponents(sweeps) -> Iterator[str]:
    heads = ("time", "time, upper half", "temporary memory", "trace", "compile")
    yield _row("in", "method", *heads)
    yield "|---" * 7 + "|"
    for name, records in sweeps.items():
        for method in STYLES:
            sizes, seconds = _columns(records, method, "seconds")
            half = min(len(sizes) // 2, len(sizes) - 2)
            fits = {f: _columns(records, method, f) for f in FIELDS}
            first, *rest = [f"{exponent(*pair):.2f}" for pair in fits.values()]
            upper = f"{exponent(sizes[half:], seconds[half:]):.2f}"
            yield _row(_label(name, records), method, first, upper, *rest)


def _local(records) -> Iterator[str]:
    """The exponents between neighbouring p, and those of the multiplications."""
    yield _row("p", "method", "p×p×p of all multiplications", "exponent", "expected")
    yield "|---" * 5 + "|"
    for method, (tall, small) in PRODUCTS.items():
        mine = [r for r in records if r["method"] == method]
        for low, high in pairwise(mine):
            sizes = low["size"], high["size"]
            work = [
                tall * r["shape"][0] * r["size"] ** 2 + small * r["size"] ** 3
                for r in (low, high)
            ]
            yield _row(
                f"{sizes[0]} to {sizes[1]}",
                method,
                f"{small * sizes[1] ** 3 / work[1]:.1%}",
                f"{exponent(sizes, [low['seconds'], high['seconds']]):.2f}",
                f"{exponent(sizes, work):.2f}",
            )


def _stacked(stack) -> str:
    seconds, compiling = stack["seconds"], stack["compile"]
    ours, bare = seconds["guarded step"], seconds["products"]
    return (
        f"\n{'×'.join(map(str, stack['shape']))} in one leaf: the guarded step takes "
        f"{1e3 * ours:.3g} ms, {ours / bare:.2f} times its bare products' "
        f"{1e3 * bare:.3g} ms, and {compiling['guarded step']:.2f} s to trace and "
        f"compile, against {compiling['products']:.2f} s.\n"
    )


def _optimisers(record) -> Iterator[str]:
    yield f"{record['leaves']} leaves of 64×16:\n"
    yield _row("optimiser", "trace, s", "compile, s", "ms a step")
    yield "|---" * 4 + "|"
    for name, row in record["rows"].items():
        cells = f"{row['trace']:.2f}", f"{row['compile']:.2f}"
        yield _row(name, *cells, f"{1e3 * row['seconds']:.3g}")


def table(result: dict[str, Any]) -> str:
    """The whole report in Markdown."""
    sweeps = result["sweeps"]
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    lines = [
        "Exponents with which a step grows, float32, short steps: slopes of "
        "least-squares lines through the logarithms of medians; for the time, those of "
        "the larger half of the sizes too, since the smaller ones are mostly the cost "
        f"of a call. Device: {result['device']}, {result['cpus']} processors, load "
        f"{result['load']:.1f} before the run; {versions}; up to {result['repeats']} "
        "turns.\n",
        *_exponents(sweeps),
        "\nWhere the p×p×p products show: the exponents of the time in p between "
        "neighbouring sizes, and those that the multiplications alone would have.\n",
        *_local(sweeps["p"]),
        _stacked(result["stack"]),
        *_optimisers(result["optimisers"]),
    ]
    for name, records in sweeps.items():
        lines += [f"\n{_label(name, records)}:\n", *_measured(records)]
    return "\n".join(lines) + "\n"


def figure(path: Path, sweeps: dict[str, list[dict[str, Any]]]) -> None:
    """Draw each quantity against each size."""
    drawn = Figure(figsize=(4 * len(sweeps), 3 * len(FIELDS)), layout="constrained")
    # The canvas is named rather than left to pyplot, so that no display is needed.
    canvas = FigureCanvasAgg(drawn)
    panels = drawn.subplots(len(FIELDS), len(sweeps), sharex="col")
    for row, (field, (unit, label)) in zip(panels, FIELDS.items(), strict=True):
        for axes, (name, records) in zip(row, sweeps.items(), strict=True):
            for method, style in STYLES.items():
                sizes, values = _columns(records, method, field)
                slope = f"{method}, {exponent(sizes, values):.2f}"
                axes.plot(sizes, [unit * v for v in values], style, label=slope)
            axes.set(xscale="log", yscale="log", ylabel=label)
            axes.set_xlabel(_label(name, records))
            sizes = sorted({r["size"] for r in records})
            axes.set_xticks(sizes, list(map(str, sizes)), minor=False)
            axes.set_xticks([], minor=True)
            axes.grid(alpha=0.3)
            axes.legend(title="exponent", fontsize="small")
    canvas.print_png(path)
