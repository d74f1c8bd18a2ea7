"""The search along a path of candidates: shorter until near enough and low enough."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from .manifold import EDGE, Measured
from .points import Point
from .problem import Problem

SHORTENINGS = 30

SAFE = 0.4
"""The ‖E‖ that is aimed at where it was above `EDGE`."""


class Trial(NamedTuple):
    """A candidate y and the point A(y) to which it leads.

    Attributes:
        x: The point A(y).
        bx: The metric applied to it.
        y: The candidate.
        value: The objective at x, infinite if y is too far out.
        gradient: The gradient of f at x.
        stepsize: The stepsize of y.
        shortenings: How many were longer.
    """

    x: Point
    bx: Point
    y: Point
    value: Array
    gradient: Point
    stepsize: Array
    shortenings: Array


class _Candidate(NamedTuple):
    measured: list[Measured]
    distance: Array
    stepsize: Array
    shortenings: Array


def search(
    problem: Problem,
    x: Point,
    stepsize: Array,
    candidate: Callable[[Array], Point],
    enough: Callable[[Point, Array], Array],
) -> tuple[Trial, Array]:
    """The first candidate whose point is low enough, and whether there was none.

    Args:
        problem: The problem.
        x: The point at which the path begins.
        stepsize: The first stepsize.
        candidate: From a stepsize to y.
        enough: From y and its stepsize to the value that A(y) must not exceed.
    """

    def candidates(stepsize, shortenings):
        measured = problem.manifold.measure(candidate(stepsize))
        distance = jnp.max(jnp.stack([m.distance for m in measured]))
        return _Candidate(
            measured=measured,
            distance=distance,
            stepsize=stepsize,
            shortenings=shortenings,
        )

    def nearer(c):
        # Along a tangent, ‖E‖ is quadratic in the stepsize: this leads inside at once.
        ratio = jnp.minimum(0.5, jnp.sqrt(SAFE / c.distance))
        ratio = jnp.where(jnp.isfinite(ratio) & (ratio > 0), ratio, 1e-3)
        return candidates(ratio * c.stepsize, c.shortenings + 1)

    def shorter(trial):
        # Only what is near enough is worth the objective.
        found = lax.while_loop(
            lambda c: ~(c.distance < EDGE) & (c.shortenings < SHORTENINGS),
            nearer,
            candidates(trial.stepsize / 2, trial.shortenings + 1),
        )
        new, bx = problem.manifold.restore(found.measured)
        value, gradient = problem.evaluate(new)
        return Trial(
            x=new,
            bx=bx,
            y=[m.matrix for m in found.measured],
            value=jnp.where(found.distance < EDGE, value, jnp.inf),
            gradient=gradient,
            stepsize=found.stepsize,
            shortenings=found.shortenings,
        )

    def too_long(trial):
        return ~(trial.value <= enough(trial.y, trial.stepsize))

    # The first attempt is in the loop too, so that it is compiled once.
    before = Trial(
        x=x,
        bx=x,
        y=x,
        value=jnp.full_like(stepsize, jnp.inf),
        gradient=x,
        stepsize=2 * stepsize,
        shortenings=-jnp.ones((), jnp.int32),
    )
    trial = lax.while_loop(
        lambda t: too_long(t) & (t.shortenings < SHORTENINGS), shorter, before
    )
    return trial, too_long(trial)
