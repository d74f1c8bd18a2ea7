"""The tables and the figure of `growth`."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.figures import blank, in_powers
from benchmarks.shared.results import surroundings
from benchmarks.shared.tables import by, table

# What is drawn, with its unit; and marker and line of each method, told apart without
# colour as well.
FIELDS = {
    "seconds": (1e3, "time of a step (ms)"),
    "temporary": (1e-6, "temporary memory (MB)"),
    "trace": (1.0, "to trace (s)"),
    "compile": (1.0, "to compile (s)"),
}
STYLES = {"keep_feasible(sgd)": "o-", "constrain(sgd)": "s--"}
LABELS = {
    "n": "rows n of n×{p}",
    "p": "columns p of {n}×p",
    "batch": "matrices of {n}×{p} in one leaf",
    "equal leaves": "leaves of {n}×{p}",
    "distinct leaves": "leaves of different shapes",
}
# Products of n×p×p and of p×p×p in a step on one device, once the point is known.
PRODUCTS = {"keep_feasible(sgd)": (2, 1), "constrain(sgd)": (4, 1)}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the least-squares line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def _label(name, records):
    *_, n, p = records[0]["shape"]
    return LABELS[name].format(n=n, p=p)


def _columns(records, method, field):
    mine = [r for r in records if r["method"] == method]
    return [r["size"] for r in mine], [r[field] for r in mine]


def _measured(records) -> str:
    rows = [
        [r["size"], r["method"]]
        + [f"{unit * r[field]:.3g}" for field, (unit, _) in FIELDS.items()]
        for r in records
    ]
    return table(
        ("size", "method", "ms", "temporary MB", "trace, s", "compile, s"), rows
    )


def _exponents(sweeps) -> str:
    rows = []
    for name, records in sweeps.items():
        for method in STYLES:
            sizes, seconds = _columns(records, method, "seconds")
            half = min(len(sizes) // 2, len(sizes) - 2)
            fits = {f: _columns(records, method, f) for f in FIELDS}
            first, *rest = [f"{exponent(*pair):.2f}" for pair in fits.values()]
            upper = f"{exponent(sizes[half:], seconds[half:]):.2f}"
            rows.append([_label(name, records), method, first, upper, *rest])
    heads = ("time", "time, upper half", "temporary memory", "trace", "compile")
    return table(("in", "method", *heads), rows)


def _local(records) -> str:
    """The exponents between neighbouring p, and those of the multiplications."""
    rows = []
    for method, (tall, small) in PRODUCTS.items():
        mine = [r for r in records if r["method"] == method]
        for low, high in pairwise(mine):
            sizes = low["size"], high["size"]
            work = [
                tall * r["shape"][0] * r["size"] ** 2 + small * r["size"] ** 3
                for r in (low, high)
            ]
            rows.append(
                [
                    f"{sizes[0]} to {sizes[1]}",
                    method,
                    f"{small * sizes[1] ** 3 / work[1]:.1%}",
                    f"{exponent(sizes, [low['seconds'], high['seconds']]):.2f}",
                    f"{exponent(sizes, work):.2f}",
                ]
            )
    heads = ("p", "method", "p×p×p of all multiplications", "exponent", "expected")
    return table(heads, rows)


def _many_leaves(record) -> str:
    rows = [
        (
            name,
            f"{row['trace']:.2f}",
            f"{row['compile']:.2f}",
            f"{1e3 * row['seconds']:.3g}",
        )
        for name, row in record["rows"].items()
    ]
    return table(("optimiser", "trace, s", "compile, s", "ms a step"), rows)


def _devices(records) -> str:
    rows = [
        (
            *(r["devices"], by(r["shape"]), f"{r['flops'] / 1e9:.3g}"),
            *(f"{r['bytes'] / 1e6:.3g}", r["rounds"]),
        )
        for r in records
    ]
    return table(("devices", "matrix", "GFLOP", "MB sent", "rounds"), rows)


def report(result: dict[str, Any]) -> str:
    """The whole report in Markdown."""
    sweeps, many = result["sweeps"], result["many leaves"]
    parts = [
        "Exponents with which a step grows, float32, short steps: slopes of "
        "least-squares lines through the logarithms of medians; for the time, those of "
        "the larger half of the sizes too, since the smaller ones are mostly the cost "
        f"of a call. Up to {result['repeats']} turns. {surroundings(result)}",
        _exponents(sweeps),
        "Where the p×p×p products show: the exponents of the time in p between "
        "neighbouring sizes, and those that the multiplications alone would have.",
        _local(sweeps["p"]),
        f"{many['leaves']} leaves of 64×16:",
        _many_leaves(many),
        "A step of constrain(adam) on a matrix that devices share by rows, what each "
        "of them computes and sends, read from the compiled program:",
        _devices(result["devices"]),
        "![](growth.png)",
    ]
    for name, records in sweeps.items():
        parts += [f"{_label(name, records)}:", _measured(records)]
    return "\n\n".join(parts)


DRAWN = {"n": "seconds", "p": "seconds", "equal leaves": "seconds"}
"""The sweeps of the figure; the last panel is of devices."""


def figure(
    path: Path, sweeps: dict[str, list[dict[str, Any]]], devices: list[dict[str, Any]]
) -> None:
    """Draw the time of a step against n, p and leaves, and the share of a device."""
    drawn = blank(11, 7)
    panels = drawn.subplots(2, 2).ravel()
    for axes, (name, field) in zip(panels, DRAWN.items(), strict=False):
        unit, label = FIELDS[field]
        records = sweeps[name]
        for method, style in STYLES.items():
            sizes, values = _columns(records, method, field)
            slope = f"{method}, exponent {exponent(sizes, values):.2f}"
            axes.plot(sizes, [unit * v for v in values], style, label=slope)
        axes.set(xlabel=_label(name, records), ylabel=label)
        in_powers(axes, sorted({r["size"] for r in records}))
        axes.legend(fontsize="small")
    counts = [r["devices"] for r in devices]
    n, p = devices[0]["shape"]
    axes = panels[-1]
    axes.plot(counts, [r["flops"] / 1e9 for r in devices], "o-", label="GFLOP")
    axes.plot(counts, [r["bytes"] / 1e6 for r in devices], "s--", label="MB sent")
    axes.set(xlabel=f"devices that share {n}×{p} by rows", ylabel="of each device")
    in_powers(axes, counts)
    axes.set_yscale("linear")
    axes.legend(fontsize="small")
    drawn.savefig(path, dpi=100)
