"""Sparse PCA by ManPG's protocol, with the solvers that are made for it."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from benchmarks.shared.problems import sparse_pca
from benchmarks.solvers.driving import Record, Trace
from benchmarks.solvers.suite import runners

TITLE = "sparse PCA"
SOURCE = (
    "ManPG: 50 Gaussian samples of 500 variables, 5 components, μ = 0.8, float64; each "
    "method from the best of 12 starts by its own first steps. There are many local "
    "minima, and the gap is to the least value that any method found"
)
GAP = 1e-6
MOST = 200
"""How many looks are kept of a run."""

ON_IT = 1e-6
"""How far from the manifold a point may be whose own value counts."""


def runs(seconds: float, *, quick: bool) -> Iterator[tuple[str, Any]]:
    """Of each method its name and a function that runs it.

    The looks have values in place of gaps: the least value is known when all have run.
    """
    size = {"n": 60, "r": 2} if quick else {}
    problem = sparse_pca.sparse_pca(0, **size)
    some = islice(runners(problem, seconds / 4), 3 if quick else None)
    for name, runner in some:
        yield name, partial(_run, runner, problem, seconds)


def _run(runner, problem, seconds) -> dict[str, Any]:
    trace: Trace = runner(problem, seconds)
    walls = trace.walls or [record.seconds for record in trace.records]
    looks = [
        [record.step, wall, _value(record), record.feasibility]
        for record, wall in zip(trace.records, walls, strict=True)
    ]
    # Some take tens of thousands of steps: a figure needs no more than that.
    kept = np.unique(np.geomspace(1, len(looks), MOST).astype(int) - 1)
    looks = [looks[i] for i in kept]
    return {"setting": None, "compile": trace.compile_seconds, "looks": looks}


def _value(record: Record) -> float | None:
    """The objective at a point of the manifold, or None.

    Away from it f has any value: a method that diverges ends far below the minimum.
    """
    if math.isfinite(record.projected_value):
        return record.projected_value
    on_it = record.feasibility <= ON_IT and math.isfinite(record.value)
    return record.value if on_it else None
