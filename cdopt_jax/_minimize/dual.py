"""The multiplier of a proximal step, by ascent on the dual problem; see `proximal`."""

from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array, lax

from cdopt_jax._math.products import mm, norm, per_matrix, phi

from .manifold import Images
from .momentum import accelerated
from .points import Point, dot
from .problem import Problem

Place = tuple[Point, Images, Array, Point]
"""A point x, what is kept of Bx, the objective there and the gradient of f."""


class Iterate(NamedTuple):
    """A point with all that belongs to it.

    Attributes:
        x: The point, on the manifold up to third order.
        images: Bx where it is kept; see `Manifold.kept`.
        value: The objective.
        gradient: The gradient of f.
        multiplier: C, of each constrained leaf.
        direction: d.
        y: The proximal point prox(x − ηd) for the C before its last improvement.
        residual: ‖y − x‖/η, the length of an element of ∇f(x) + BxΛ + ∂r(y).
        stepsize: That η.
    """

    x: Point
    images: Images
    value: Array
    gradient: Point
    multiplier: Point
    direction: Point
    y: Point
    residual: Array
    stepsize: Array


class _Dual(NamedTuple):
    """The ascent on the dual problem.

    Attributes:
        multiplier: C.
        ahead: The multiplier from which the next step is taken.
        momentum: Nesterov's sequence.
        y: The proximal point for the multiplier from which the last step was taken.
        off: The norm of its normal part.
        size: Its distance from x.
        taken: How many steps were taken.
    """

    multiplier: Point
    ahead: Point
    momentum: Array
    y: Point
    off: Array
    size: Array
    taken: Array


def iterate(
    problem: Problem, at: Place, multiplier: Point, stepsize: Array, rounds: Array
) -> Iterate:
    """A point with its direction, after so many rounds on the dual problem."""
    (x, images, value, gradient), manifold = at, problem.manifold
    bx = manifold.unkept(x, images)
    tangential = manifold.tangent(bx, gradient)
    smooth = Iterate(
        x=x,
        images=images,
        value=value,
        gradient=gradient,
        multiplier=multiplier,
        direction=tangential,
        y=x,
        residual=optax.tree.norm(tangential),
        stepsize=stepsize,
    )
    if problem.regularizer is None:
        return smooth

    def directed(multiplier):
        return optax.tree.add(tangential, manifold.multiply(bx, multiplier))

    pairs = zip(bx, manifold.forms, strict=True)
    paces = [1 / (stepsize * _largest(b, form)) for b, form in pairs]

    def body(dual):
        d = directed(dual.ahead)
        y = problem.prox(optax.tree.add_scale(x, -stepsize, d), stepsize, x)
        moved = optax.tree.sub(y, x)
        off = manifold.inner(bx, moved)
        new = [c + o * pace for c, o, pace in zip(dual.ahead, off, paces, strict=True)]
        change = optax.tree.sub(new, dual.multiplier)
        turned = dot(off, change) < 0
        momentum, share = accelerated(dual.momentum, turned)
        return _Dual(
            multiplier=new,
            ahead=optax.tree.add_scale(new, share, change),
            momentum=momentum,
            y=y,
            off=optax.tree.norm(off),
            size=optax.tree.norm(moved),
            taken=dual.taken + 1,
        )

    def inexact(dual):
        # Along a tangent the objective falls by the square of the length, so that is
        # what the normal part must be small against.
        small = 1e-2 * dual.size * jnp.minimum(dual.size, 1)
        return (dual.taken < rounds) & (dual.off > small)

    one = jnp.ones((), value.dtype)
    start = _Dual(
        multiplier=multiplier,
        ahead=multiplier,
        momentum=one,
        y=x,
        off=jnp.inf * one,
        size=0 * one,
        taken=jnp.zeros((), jnp.int32),
    )
    dual = lax.while_loop(inexact, body, start)
    return smooth._replace(
        multiplier=dual.multiplier,
        direction=directed(dual.multiplier),
        y=dual.y,
        residual=dual.size / stepsize,
    )


def _largest(bx, form):
    """The largest eigenvalue of xᵀB²x, from the Schatten-4 norm: within p^(1/4)."""
    if form is None or form.B is None:
        return 1
    s = phi(form.gram(bx, bx))
    return per_matrix(jnp.sqrt(norm(mm(s, s))))
