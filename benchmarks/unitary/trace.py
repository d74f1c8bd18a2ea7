"""The course of a run, whoever made it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import cdopt_jax as cdx
from benchmarks.unitary.problems import UNITARY, Problem


class Trace(NamedTuple):
    """A run, by the points that were looked at.

    Attributes:
        steps: After how many steps, as the method counts them.
        seconds: Spent until then, without compilation.
        gaps: How far the value is above the least.
        feasibility: The largest ‖UᴴU − I‖_F of a matrix.
    """

    steps: list[int]
    seconds: list[float]
    gaps: list[float]
    feasibility: list[float]


def made(problem: Problem, steps: Any, seconds: Any, values: Any, off: Any) -> Trace:
    """A trace from arrays."""
    return Trace(
        steps=[int(k) for k in steps],
        seconds=[float(s) for s in seconds],
        gaps=[float(problem.gap(v)) for v in values],
        feasibility=[float(e) for e in off],
    )


def tracer(problem: Problem) -> Callable[[Any, Any, Sequence[Any]], Trace]:
    """From steps, seconds and points to a trace, measured when the run is over."""

    @jax.jit
    def measure(x):
        (off,) = cdx.feasibility(x, UNITARY).values()
        return problem.f(x), off

    def trace(steps, seconds, points):
        found = np.asarray([measure(x) for x in points])
        return made(problem, steps, seconds, found[:, 0], found[:, 1])

    return trace
