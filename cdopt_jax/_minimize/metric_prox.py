"""The proximal map in the coordinates of a metric, or of leaves of several scales."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from cdopt_jax._math.products import adjoint, mm
from cdopt_jax.prox import Regularizer

from .coordinates import Coordinates, solve
from .momentum import accelerated
from .points import Point, dot

STEPS, ACCURACY = 500, 0.1
"""The most steps, and the relative accuracy."""


class _Accelerated(NamedTuple):
    """The state of the proximal map in a metric.

    Attributes:
        z: The last point.
        ahead: The point from which the next step is taken.
        momentum: Nesterov's sequence.
        excess: By how much the residual exceeds the accuracy that is asked for.
        taken: How many steps were taken.
    """

    z: Point
    ahead: Point
    momentum: Array
    excess: Array
    taken: Array


def prox_in_metric(
    coordinates: Coordinates,
    regularizer: Regularizer,
    y: Point,
    step: Array,
    near: Point,
) -> optax.Params:
    """The parameters argmin_z r(z) + ‖Lᴴz/c − y‖²/(2·step), of leaves with scales c.

    The problem is strongly convex, and is solved by accelerated proximal steps in z.

    Args:
        coordinates: How parameters are read.
        regularizer: The term r.
        y: The point.
        step: The stepsize.
        near: A point near which the result is expected.
    """
    structure = coordinates.structure
    plain = coordinates.plain._replace(structure=structure.unscaled)
    pairs = list(zip(coordinates.factors, structure.scales, strict=True))

    def times(z):
        """Lᴴz/c."""
        rows = zip(z, pairs, strict=True)
        return [(a if f is None else mm(adjoint(f), a)) / c for a, (f, c) in rows]

    def transposed(w):
        rows = zip(w, pairs, strict=True)
        return [(a if f is None else mm(f, a)) / c for a, (f, c) in rows]

    def undone(w):
        """The inverse of `transposed`."""

        def one(a, factor, c):
            lower = partial(solve_triangular, factor, lower=True)
            return c * (a if factor is None else solve(lower, a))

        return [one(a, *pair) for a, pair in zip(w, pairs, strict=True)]

    def bound(slot, factor, c):
        """‖B‖_F and the largest row sum both bound the largest eigenvalue."""
        if factor is None:
            return 1 / c**2
        b = coordinates.metrics[slot]
        rows = jnp.max(jnp.sum(jnp.abs(b), axis=1))
        return jnp.minimum(jnp.linalg.norm(b), rows) / c**2

    slots = zip(structure.slots, pairs, strict=True)
    bounds = [bound(slot, *pair) for slot, pair in slots]
    steepest = jnp.max(jnp.stack([jnp.asarray(b, step.dtype) for b in bounds]))

    def body(c):
        slope = transposed(optax.tree.sub(times(c.ahead), y))
        ahead = optax.tree.add_scale(c.ahead, -1 / steepest, slope)
        new = plain.read(regularizer.prox(plain.write(ahead), step / steepest))
        moved = optax.tree.sub(new, c.ahead)
        # What is left of 0 ∈ L⁻¹∂r(z) + Lᵀz − y, for the subgradient at hand.
        left = optax.tree.sub(times(moved), optax.tree.scale(steepest, undone(moved)))
        wanted = ACCURACY * optax.tree.norm(optax.tree.sub(times(new), near))
        turned = dot(moved, optax.tree.sub(new, c.z)) < 0
        momentum, share = accelerated(c.momentum, turned)
        return _Accelerated(
            z=new,
            ahead=optax.tree.add_scale(new, share, optax.tree.sub(new, c.z)),
            momentum=momentum,
            excess=optax.tree.norm(left) - wanted,
            taken=c.taken + 1,
        )

    start = plain.read(coordinates.write(near))
    one = jnp.ones((), step.dtype)
    first = _Accelerated(
        z=start,
        ahead=start,
        momentum=one,
        excess=one,
        taken=jnp.zeros((), jnp.int32),
    )
    last = lax.while_loop(lambda c: (c.excess > 0) & (c.taken < STEPS), body, first)
    return plain.write(last.z)
