"""The search along a path of candidates: shorter until near enough and low enough."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from .manifold import EDGE, Images
from .points import Point
from .problem import Problem

SHORTENINGS = 30

SAFE = 0.4
"""The ‖E‖ that is aimed at where it was above `EDGE`."""


class Trial(NamedTuple):
    """A candidate y and the point A(y) to which it leads.

    Attributes:
        x: The point A(y).
        images: Bx where it is kept; see `Manifold.kept`.
        value: The objective at x, infinite if y is too far out.
        gradient: The gradient of f at x.
        distance: How far y is from the manifold.
        stepsize: The stepsize of y.
        shortenings: How many were longer.
        low: Whether the value is low enough.
    """

    x: Point
    images: Images
    value: Array
    gradient: Point
    distance: Array
    stepsize: Array
    shortenings: Array
    low: Array


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

    def shorter(trial):
        # Along a tangent, ‖E‖ is quadratic in the stepsize: this leads inside at once.
        ratio = jnp.minimum(0.5, jnp.sqrt(SAFE / trial.distance))
        ratio = jnp.where(jnp.isfinite(ratio) & (ratio > 0), ratio, 1e-3)
        ratio = jnp.where(trial.distance < EDGE, 0.5, ratio)
        stepsize = ratio * trial.stepsize
        measured = problem.manifold.measure(candidate(stepsize))
        distance = jnp.max(jnp.stack([m.distance for m in measured]))

        def near():
            new, images = problem.manifold.restore(measured)
            return new, images, *problem.evaluate(new)

        def far():
            lost = jnp.full_like(stepsize, jnp.inf)
            return trial.x, trial.images, lost, trial.gradient

        # Only what is near enough is worth the objective.
        new, images, value, gradient = lax.cond(distance < EDGE, near, far)
        y = [m.matrix for m in measured]
        return Trial(
            x=new,
            images=images,
            value=value,
            gradient=gradient,
            distance=distance,
            stepsize=stepsize,
            shortenings=trial.shortenings + 1,
            low=value <= enough(y, stepsize),
        )

    # The first attempt is in the loop too, so that it is compiled once.
    before = Trial(
        x=x,
        images=problem.manifold.kept(x),
        value=jnp.full_like(stepsize, jnp.inf),
        gradient=x,
        distance=jnp.zeros_like(stepsize),
        stepsize=2 * stepsize,
        shortenings=-jnp.ones((), jnp.int32),
        low=jnp.zeros((), bool),
    )
    trial = lax.while_loop(
        lambda t: ~t.low & (t.shortenings < SHORTENINGS), shorter, before
    )
    return trial, ~trial.low
