"""Learning rates that are far too large."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.convergence.descent import Course, constant, descend, wrapped
from benchmarks.shared.problems import TRAINING
from benchmarks.shared.tables import table

TITLE = "Learning rates far too large"

LARGE = ("pca", "procrustes")
QUARTERS = np.arange(-3, 3.76, 0.25)
GAP = 1e-3
FACTORS = {"1": 0, "3": 2, "10": 4, "30": 6, "100": 8}
"""How many quarters of a decade above the best rate."""


def runs(seeds: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """The records."""
    del seeds
    steps = 50 if quick else 1000
    rates = [float(10**k) for k in QUARTERS]
    for title in LARGE[:1] if quick else LARGE:
        for name in ("momentum",) if quick else ("momentum", "adam"):
            problem, make = TRAINING[title](0), wrapped("constrain", name)
            first = descend(
                problem, make, rates, Course(steps=steps, decay=constant, gap=GAP)
            )
            best = int(np.argmin(np.where(first["met"], first["steps"], steps + 1)))
            chosen = {f: best + k for f, k in FACTORS.items() if best + k < len(rates)}
            large = [rates[i] for i in chosen.values()]
            ends = descend(problem, make, large, Course(steps=steps))
            head = {"problem": title, "optimiser": name, "steps": steps}
            head |= {"best": problem.best, "factors": list(chosen), "rates": large}
            yield head | {k: v for k, v in ends.items() if k != "steps"}


def report(records: list[dict[str, Any]]) -> str:
    """The table."""
    rows = [
        [
            *(r["problem"], r["optimiser"], f"{rate:.2g}", factor),
            f"{(value - r['best']) / abs(r['best']):.1e}",
            *(f"{off:.1e}", f"{shortened:.0%}", f"{long:.0%}"),
        ]
        for r in records
        for rate, factor, value, off, shortened, long in zip(
            *(r[name] for name in ("rates", "factors", "values", "feasibility")),
            *(r[name] for name in ("shortened", "long")),
            strict=True,
        )
    ]
    header = ("problem", "optimiser", "rate", "×", "gap", "‖XᵀX − I‖_F/√p")
    return (
        f"`constrain` for {records[0]['steps']:,} steps of a cosine decay, in float32, "
        f"from the rate that is first to meet a gap of {GAP:g} when it is constant "
        "(× 1) up to 100 times that rate.\n\n"
        + table((*header, "shortened", "long"), rows)
    )
