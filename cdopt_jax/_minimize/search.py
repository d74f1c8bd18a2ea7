"""The search along a path of candidates: shorter until near enough and low enough."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from cdopt_jax._minimize.landscape import EDGE, Far, Landscape, Point

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
    fars: list[Far]
    off: Array
    stepsize: Array
    shortenings: Array


def search(
    land: Landscape,
    x: Point,
    stepsize: Array,
    candidate: Callable[[Array], Point],
    enough: Callable[[Point, Array], Array],
) -> tuple[Trial, Array]:
    """The first candidate whose point is low enough, and whether there was none.

    Args:
        land: The landscape.
        x: The point at which the path begins.
        stepsize: The first stepsize.
        candidate: From a stepsize to y.
        enough: From y and its stepsize to the value that A(y) must not exceed.
    """

    def candidates(stepsize, shortenings):
        fars = land.measured(candidate(stepsize))
        off = jnp.max(jnp.stack([far.off for far in fars]))
        return _Candidate(fars, off, stepsize, shortenings)

    def nearer(c):
        # Along a tangent, ‖E‖ is quadratic in the stepsize: this leads inside at once.
        share = jnp.minimum(0.5, jnp.sqrt(SAFE / c.off))
        return candidates(share * c.stepsize, c.shortenings + 1)

    def shorter(trial):
        # Only what is near enough is worth the objective.
        found = lax.while_loop(
            lambda c: ~(c.off < EDGE) & (c.shortenings < SHORTENINGS),
            nearer,
            candidates(trial.stepsize / 2, trial.shortenings + 1),
        )
        new, bx = land.restored(found.fars)
        value, gradient = evaluate(land, new)
        value = jnp.where(found.off < EDGE, value, jnp.inf)
        y = [far.a for far in found.fars]
        return Trial(new, bx, y, value, gradient, found.stepsize, found.shortenings)

    def too_long(trial):
        return ~(trial.value <= enough(trial.y, trial.stepsize))

    none = -jnp.ones((), jnp.int32)
    # The first attempt is in the loop too, so that it is compiled once.
    before = Trial(x, x, x, jnp.full_like(stepsize, jnp.inf), x, 2 * stepsize, none)
    trial = lax.while_loop(
        lambda t: too_long(t) & (t.shortenings < SHORTENINGS), shorter, before
    )
    return trial, too_long(trial)


def evaluate(land: Landscape, x: Point) -> tuple[Array, Point]:
    """The objective f + r, and the gradient of f."""
    value, gradient = jax.value_and_grad(land.smooth)(x)
    return value + land.regular(x), gradient
